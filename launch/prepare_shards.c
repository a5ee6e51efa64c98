#include "data/prepare.h"
#include "launch/prepare_options.h"
#include "launch/prepare_progress.h"

#include <inttypes.h>
#include <stdio.h>

typedef struct {
    tt_prepare_input input;
    const char *tokenizer, *output, *text_only;
    int masking;
    bool whole_word, overwrite;
    double mask_probability, short_probability, validation_fraction;
    int64_t sequence_length, max_predictions, duplicates, shards, rows_per_shard, buffer_tokens,
        seed;
} settings;

static settings default_settings(void)
{
    const tt_prepare_options defaults = tt_prepare_default_options();
    return (settings){
        .mask_probability = defaults.mask_probability,
        .short_probability = defaults.short_probability,
        .sequence_length = defaults.sequence_length,
        .duplicates = defaults.duplicates,
        .rows_per_shard = defaults.rows_per_shard,
        .buffer_tokens = defaults.buffer_tokens,
        .seed = (int64_t)defaults.seed,
    };
}

static void add_row_options(tt_prepare_table *table, settings *settings)
{
    static const char *const maskings[] = {"dynamic", "static", NULL};
    const tt_option options[] = {
        {"tokenizer", TT_OPTION_TEXT, &settings->tokenizer, "FILE",
         "SentencePiece model of prepare tokenizer", NULL, 0, 0, false},
        {"output", TT_OPTION_TEXT, &settings->output, "FOLDER",
         "gets train_*.hdf5, validation_*.hdf5 and tokenizer.model", NULL, 0, 0, false},
        {"sequence-length", TT_OPTION_INTEGER, &settings->sequence_length, "N",
         "tokens in a row, padding included", NULL, 8, 65536, false},
        {"masking", TT_OPTION_CHOICE, &settings->masking, NULL,
         "masks drawn anew while training, or once now", maskings, 0, 0, false},
        {"max-predictions", TT_OPTION_INTEGER, &settings->max_predictions, "N",
         "static masking: most masked tokens in a row; 0: 20 for 128 tokens, 80 for 512 and so on",
         NULL, 0, 65536, false},
        {"mask-probability", TT_OPTION_REAL, &settings->mask_probability, "X",
         "static masking: share of tokens to mask", NULL, 1e-6, 1, false},
        {"whole-word", TT_OPTION_FLAG, &settings->whole_word, NULL,
         "static masking: mask whole words", NULL, 0, 0, false},
        {"short-probability", TT_OPTION_REAL, &settings->short_probability, "X",
         "share of pairs made shorter than the row", NULL, 0, 1, false},
        {"duplicates", TT_OPTION_INTEGER, &settings->duplicates, "N",
         "times that each document is paired anew; 5 to 10 are usual for static masking", NULL, 1,
         1000, false},
    };
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++) {
        tt_prepare_add_option(table, options[i]);
    }
}

static void add_shard_options(tt_prepare_table *table, settings *settings)
{
    const tt_option options[] = {
        {"validation-fraction", TT_OPTION_REAL, &settings->validation_fraction, "X",
         "share of documents kept apart for validation", NULL, 0, 0.999, false},
        {"shards", TT_OPTION_INTEGER, &settings->shards, "N",
         "training shards, at most one a document and 512; 0: by --rows-per-shard", NULL, 0, 512,
         false},
        {"rows-per-shard", TT_OPTION_INTEGER, &settings->rows_per_shard, "N",
         "rows in a shard where --shards is 0", NULL, 1, INT32_MAX, false},
        {"buffer-tokens", TT_OPTION_INTEGER, &settings->buffer_tokens, "N",
         "pair documents within buffers of N tokens; memory is some 6 bytes a token, twice with a "
         "validation split, and independent of the size of the corpus",
         NULL, 1, (double)INT64_MAX, false},
        {"seed", TT_OPTION_INTEGER, &settings->seed, "N", "the same seed gives the same shards",
         NULL, 0, (double)INT64_MAX, false},
        {"overwrite", TT_OPTION_FLAG, &settings->overwrite, NULL,
         "replace shards that are in the folder", NULL, 0, 0, false},
    };
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++) {
        tt_prepare_add_option(table, options[i]);
    }
}

/* Most memory that the buffers and open shards can take, beside what one long document needs. */
static double memory_bound(const settings *settings)
{
    const double growth = 1.5, bytes_a_token = 4.5, rows_open = 1024, bytes_a_place = 7;
    double splits = settings->validation_fraction > 0 ? 2 : 1;
    double open = (settings->shards > 0 ? (double)settings->shards : 1) + splits - 1;
    return (double)settings->buffer_tokens * bytes_a_token * growth * splits +
           open * rows_open * (double)settings->sequence_length * bytes_a_place;
}

static void print_summary(const settings *settings, const tt_prepare_summary *summary,
                          double seconds)
{
    int64_t rows = summary->train_rows + summary->validation_rows;
    double places = (double)rows * (double)settings->sequence_length;
    fprintf(stderr,
            "tokens: %" PRId64 " in %" PRId64 " sentences, %.2f %% unknown\n"
            "rows: %" PRId64 " of %" PRId64 " tokens, %.1f %% filled, %.1f %% with a random next "
            "sentence\n"
            "shards: %d for training with %" PRId64 " rows, %d for validation with %" PRId64
            " rows of %" PRId64 " documents: %s\n"
            "time: %.1f s; buffers took %.1f MB\n",
            summary->tokens, summary->sentences,
            100 * (double)summary->unknown_tokens / (double)summary->tokens, rows,
            settings->sequence_length, 100 * (double)summary->row_tokens / places,
            100 * (double)summary->random_next_rows / (double)rows, summary->train_shards,
            summary->train_rows, summary->validation_shards, summary->validation_rows,
            summary->validation_documents, settings->output, seconds,
            (double)summary->buffer_bytes / 1e6);
}

static json_t *summary_json(const settings *settings, const tt_prepare_summary *summary)
{
    json_t *object = json_object();
    json_object_set_new(object, "output", json_string(settings->output));
    tt_prepare_set_integer(object, "sequence_length", settings->sequence_length);
    tt_prepare_set_integer(object, "documents", summary->documents);
    tt_prepare_set_integer(object, "validation_documents", summary->validation_documents);
    tt_prepare_set_integer(object, "sentences", summary->sentences);
    tt_prepare_set_integer(object, "tokens", summary->tokens);
    tt_prepare_set_integer(object, "unknown_tokens", summary->unknown_tokens);
    tt_prepare_set_integer(object, "train_rows", summary->train_rows);
    tt_prepare_set_integer(object, "validation_rows", summary->validation_rows);
    tt_prepare_set_integer(object, "train_shards", summary->train_shards);
    tt_prepare_set_integer(object, "validation_shards", summary->validation_shards);
    tt_prepare_set_integer(object, "row_tokens", summary->row_tokens);
    tt_prepare_set_integer(object, "random_next_rows", summary->random_next_rows);
    tt_prepare_set_integer(object, "masked_tokens", summary->masked_tokens);
    tt_prepare_set_integer(object, "buffer_bytes", summary->buffer_bytes);
    return object;
}

/* What the shards say about where they come from. */
static void describe_source(const settings *settings, char *text, size_t size)
{
    const tt_option_list *input = &settings->input.input;
    if (input->count == 1) {
        snprintf(text, size, "%s", input->values[0]);
    } else {
        snprintf(text, size, "%s and %d more", input->values[0], input->count - 1);
    }
}

static tt_prepare_options shard_options(const settings *settings, const char *source)
{
    int length = (int)settings->sequence_length;
    return (tt_prepare_options){
        .output = settings->output,
        .tokenizer_path = settings->tokenizer,
        .source = source,
        .sequence_length = length,
        .masking = settings->masking == 1 ? TT_MASKING_STATIC : TT_MASKING_DYNAMIC,
        .max_predictions = settings->max_predictions > 0 ? (int)settings->max_predictions
                                                         : tt_prepare_usual_predictions(length),
        .mask_probability = settings->mask_probability,
        .whole_word = settings->whole_word,
        .short_probability = settings->short_probability,
        .duplicates = (int)settings->duplicates,
        .validation_fraction = settings->validation_fraction,
        .shards = (int)settings->shards,
        .rows_per_shard = settings->rows_per_shard,
        .buffer_tokens = settings->buffer_tokens,
        .seed = (uint64_t)settings->seed,
        .overwrite = settings->overwrite,
    };
}

/* Writes shards, or clean text where only that is asked for. */
static tt_status write_output(const settings *settings, tt_corpus *corpus,
                              tt_reading_progress *progress, tt_prepare_summary *summary,
                              tt_error *error)
{
    if (settings->text_only != NULL) {
        return tt_prepare_text(corpus, settings->text_only, tt_reading_progress_update, progress,
                               summary, error);
    }
    tt_tokenizer *tokenizer = NULL;
    TT_TRY(tt_tokenizer_open(settings->tokenizer, &tokenizer, error));
    fprintf(stderr, "memory: buffers and open shards take at most some %.0f MB\n",
            memory_bound(settings) / 1e6);
    char source[256];
    describe_source(settings, source, sizeof source);
    const tt_prepare_options options = shard_options(settings, source);
    tt_status status = tt_prepare_shards(corpus, tokenizer, &options, tt_reading_progress_update,
                                         progress, summary, error);
    tt_tokenizer_close(&tokenizer);
    return status;
}

static int report(const char *name, const settings *settings, const tt_corpus_counts *counts,
                  const tt_prepare_summary *summary, double seconds)
{
    tt_prepare_print_counts(counts);
    if (settings->text_only == NULL) {
        print_summary(settings, summary, seconds);
    } else {
        fprintf(stderr, "text: %s\n", settings->text_only);
    }
    if (!settings->input.json) {
        return TT_EXIT_DONE;
    }
    json_t *object = settings->text_only == NULL ? summary_json(settings, summary) : json_object();
    if (settings->text_only != NULL) {
        json_object_set_new(object, "text", json_string(settings->text_only));
    }
    json_object_set_new(object, "corpus", tt_prepare_counts_json(counts));
    return tt_prepare_print_json(name, object);
}

static int run(const char *name, const settings *settings)
{
    tt_error error;
    tt_corpus *corpus = NULL;
    tt_prepare_summary summary;
    tt_reading_progress progress;
    tt_reading_progress_start(&progress, stderr, settings->input.input.values);
    tt_status status = tt_prepare_open_corpus(&settings->input, &corpus, &error);
    if (status == TT_OK) {
        status = write_output(settings, corpus, &progress, &summary, &error);
    }
    tt_reading_progress_end(&progress);
    int exit_status = status == TT_OK ? report(name, settings, tt_corpus_get_counts(corpus),
                                               &summary, tt_reading_progress_seconds(&progress))
                                      : tt_command_failed(name, &error);
    tt_corpus_close(&corpus);
    return exit_status;
}

static int parse_and_run(const tt_command *command, int argc, char **argv, settings *settings)
{
    int exit_status = TT_EXIT_DONE;
    if (!tt_prepare_parse(command, argc, argv, &settings->input, &exit_status)) {
        return exit_status;
    }
    bool shards = settings->tokenizer != NULL && settings->output != NULL;
    if (settings->text_only == NULL && !shards) {
        return tt_command_usage(command->name, "%s is required",
                                settings->tokenizer == NULL ? "--tokenizer" : "--output");
    }
    return run(command->name, settings);
}

int tt_prepare_text_main(int argc, char **argv)
{
    settings settings = default_settings();
    tt_prepare_table table = {.count = 0};
    tt_prepare_add_input(&table, &settings.input);
    tt_prepare_add_format(&table, &settings.input);
    tt_prepare_add_headings(&table, &settings.input);
    add_row_options(&table, &settings);
    add_shard_options(&table, &settings);
    tt_prepare_add_json(&table, &settings.input.json);
    const tt_command command = {
        .name = "prepare text",
        .arguments = "[FILE...]",
        .purpose = "Turns plain text into shards of sentence pairs for pre-training. Needs\n"
                   "--tokenizer and --output. Shards appear when all are done.",
        .example = "ttrain prepare text --input corpus.txt --tokenizer tokenizer.model \\\n"
                   "      --sequence-length 128 --validation-fraction 0.05 --output shards128",
        .options = table.options,
        .option_count = table.count,
        .maximum_arguments = -1,
    };
    return parse_and_run(&command, argc, argv, &settings);
}

int tt_prepare_wikipedia_main(int argc, char **argv)
{
    settings settings = default_settings();
    settings.input.format = TT_CORPUS_WIKIPEDIA;
    tt_prepare_table table = {.count = 0};
    tt_prepare_add_input(&table, &settings.input);
    tt_prepare_add_headings(&table, &settings.input);
    tt_prepare_add_lists(&table, &settings.input);
    tt_prepare_add_option(&table,
                          (tt_option){"text-only", TT_OPTION_TEXT, &settings.text_only, "FILE",
                                      "write the cleaned text here, a block a page, and no shards",
                                      NULL, 0, 0, false});
    add_row_options(&table, &settings);
    add_shard_options(&table, &settings);
    tt_prepare_add_json(&table, &settings.input.json);
    const tt_command command = {
        .name = "prepare wikipedia",
        .arguments = "[FILE...]",
        .purpose = "Turns a MediaWiki pages-articles dump (.xml or .xml.bz2) into shards of\n"
                   "sentence pairs for pre-training: articles only, without mark-up. Needs\n"
                   "--tokenizer and --output, or --text-only. Shards appear when all are done.",
        .example = "ttrain prepare wikipedia --input enwiki-latest-pages-articles.xml.bz2 \\\n"
                   "      --tokenizer tokenizer.model --output shards128",
        .options = table.options,
        .option_count = table.count,
        .maximum_arguments = -1,
    };
    return parse_and_run(&command, argc, argv, &settings);
}
