#include "data/prepare.h"
#include "launch/prepare_options.h"
#include "launch/prepare_progress.h"

#include <inttypes.h>
#include <stdio.h>

typedef struct {
    tt_prepare_input input;
    const char *output;
    int model, source;
    bool lower_case;
    double character_coverage;
    int64_t vocabulary_size, max_sentences, threads, seed;
} settings;

static void fill_table(tt_prepare_table *table, settings *settings)
{
    static const char *const models[] = {"unigram", "bpe", NULL};
    static const char *const sources[] = {"text", "wikipedia", NULL};
    const tt_option options[] = {
        {"output", TT_OPTION_TEXT, &settings->output, "FILE", "the SentencePiece model to write",
         NULL, 0, 0, true},
        {"vocab-size", TT_OPTION_INTEGER, &settings->vocabulary_size, "N",
         "pieces, the five special ones included", NULL, 8, 1 << 24, false},
        {"model", TT_OPTION_CHOICE, &settings->model, NULL, "kind of model", models, 0, 0, false},
        {"lower-case", TT_OPTION_FLAG, &settings->lower_case, NULL,
         "fold case, as uncased BERT models do", NULL, 0, 0, false},
        {"character-coverage", TT_OPTION_REAL, &settings->character_coverage, "X",
         "share of all characters that get a piece", NULL, 0.98, 1, false},
        {"max-sentences", TT_OPTION_INTEGER, &settings->max_sentences, "N",
         "train on at most N sentences, drawn evenly from all; memory grows with them", NULL, 1,
         INT32_MAX, false},
        {"source", TT_OPTION_CHOICE, &settings->source, NULL, "what the input is", sources, 0, 0,
         false},
    };
    tt_prepare_add_input(table, &settings->input);
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++) {
        tt_prepare_add_option(table, options[i]);
    }
    tt_prepare_add_format(table, &settings->input);
    tt_prepare_add_headings(table, &settings->input);
    tt_prepare_add_lists(table, &settings->input);
    tt_prepare_add_option(table, (tt_option){"threads", TT_OPTION_INTEGER, &settings->threads, "N",
                                             "threads to train with", NULL, 1, 1024, false});
    tt_prepare_add_option(table, (tt_option){"seed", TT_OPTION_INTEGER, &settings->seed, "N",
                                             "settles which sentences are drawn", NULL, 0,
                                             UINT32_MAX - 1, false});
    tt_prepare_add_json(table, &settings->input.json);
}

static tt_status train(const settings *settings, tt_corpus *corpus, tt_reading_progress *progress,
                       tt_prepare_summary *summary, tt_error *error)
{
    const tt_tokenizer_options options = {
        .model = (tt_tokenizer_model)settings->model,
        .vocabulary_size = (int)settings->vocabulary_size,
        .lower_case = settings->lower_case,
        .character_coverage = settings->character_coverage,
        .max_lines = settings->max_sentences,
        .threads = (int)settings->threads,
        .seed = (uint32_t)settings->seed,
    };
    return tt_prepare_tokenizer(corpus, &options, settings->output, tt_reading_progress_update,
                                progress, summary, error);
}

static int report(const char *name, const settings *settings, const tt_tokenizer *tokenizer,
                  const tt_corpus_counts *counts, const tt_prepare_summary *summary)
{
    int size = tt_tokenizer_vocabulary_size(tokenizer);
    tt_prepare_print_counts(counts);
    fprintf(stderr, "tokenizer: %d pieces from %" PRId64 " sentences: %s\n", size,
            summary->sentences, settings->output);
    if (!settings->input.json) {
        return TT_EXIT_DONE;
    }
    char hash[20];
    snprintf(hash, sizeof hash, "%016" PRIx64, tt_tokenizer_hash(tokenizer));
    json_t *object = json_object();
    json_object_set_new(object, "tokenizer", json_string(settings->output));
    tt_prepare_set_integer(object, "vocabulary_size", size);
    json_object_set_new(object, "hash", json_string(hash));
    tt_prepare_set_integer(object, "sentences", summary->sentences);
    json_object_set_new(object, "corpus", tt_prepare_counts_json(counts));
    return tt_prepare_print_json(name, object);
}

static int run(const char *name, const settings *settings)
{
    tt_error error;
    tt_corpus *corpus = NULL;
    tt_tokenizer *tokenizer = NULL;
    tt_prepare_summary summary;
    tt_reading_progress progress;
    tt_reading_progress_start(&progress, stderr, settings->input.input.values);
    tt_status status = tt_prepare_open_corpus(&settings->input, &corpus, &error);
    if (status == TT_OK) {
        status = train(settings, corpus, &progress, &summary, &error);
    }
    tt_reading_progress_end(&progress);
    if (status == TT_OK) {
        status = tt_tokenizer_open(settings->output, &tokenizer, &error);
    }
    int exit_status =
        status == TT_OK ? report(name, settings, tokenizer, tt_corpus_get_counts(corpus), &summary)
                        : tt_command_failed(name, &error);
    tt_tokenizer_close(&tokenizer);
    tt_corpus_close(&corpus);
    return exit_status;
}

int tt_prepare_tokenizer_main(int argc, char **argv)
{
    const tt_tokenizer_options defaults = tt_tokenizer_default_options();
    settings settings = {
        .model = defaults.model,
        .character_coverage = defaults.character_coverage,
        .vocabulary_size = defaults.vocabulary_size,
        .max_sentences = defaults.max_lines,
        .threads = defaults.threads,
        .seed = defaults.seed,
    };
    tt_prepare_table table = {.count = 0};
    fill_table(&table, &settings);
    const tt_command command = {
        .name = "prepare tokenizer",
        .arguments = "[FILE...]",
        .purpose = "Trains a SentencePiece model with the special pieces [PAD] [UNK] [CLS] [SEP]\n"
                   "[MASK] at the ids 0 to 4. The same input and options give the same file.",
        .example = "ttrain prepare tokenizer --input corpus.txt --vocab-size 8000 \\\n"
                   "      --output tokenizer.model",
        .options = table.options,
        .option_count = table.count,
        .maximum_arguments = -1,
    };
    int exit_status = TT_EXIT_DONE;
    if (!tt_prepare_parse(&command, argc, argv, &settings.input, &exit_status)) {
        return exit_status;
    }
    if (settings.source == 1) {
        settings.input.format = TT_CORPUS_WIKIPEDIA;
    }
    return run(command.name, &settings);
}
