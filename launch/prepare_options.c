#include "launch/prepare_options.h"

#include <inttypes.h>
#include <stdio.h>

void tt_prepare_add_option(tt_prepare_table *table, tt_option option)
{
    table->options[table->count++] = option;
}

void tt_prepare_add_input(tt_prepare_table *table, tt_prepare_input *input)
{
    tt_prepare_add_option(table, (tt_option){.name = "input",
                                             .kind = TT_OPTION_LIST,
                                             .target = &input->input,
                                             .value = "FILE...",
                                             .help = "files to read, plain or .bz2",
                                             .required = true});
}

void tt_prepare_add_format(tt_prepare_table *table, tt_prepare_input *input)
{
    /* In the order of tt_corpus_format. */
    static const char *const formats[] = {"auto", "blocks", "lines", "wikitext", NULL};
    tt_prepare_add_option(table,
                          (tt_option){.name = "format",
                                      .kind = TT_OPTION_CHOICE,
                                      .target = &input->format,
                                      .choices = formats,
                                      .help = "a document is a block between blank lines, a line, "
                                              "or a WikiText article; auto: wikitext where the "
                                              "file has such titles, else blocks"});
}

void tt_prepare_add_headings(tt_prepare_table *table, tt_prepare_input *input)
{
    tt_prepare_add_option(table, (tt_option){.name = "keep-headings",
                                             .kind = TT_OPTION_FLAG,
                                             .target = &input->keep_headings,
                                             .help = "section headings become lines of text"});
}

void tt_prepare_add_lists(tt_prepare_table *table, tt_prepare_input *input)
{
    tt_prepare_add_option(table, (tt_option){.name = "keep-lists",
                                             .kind = TT_OPTION_FLAG,
                                             .target = &input->keep_lists,
                                             .help = "list items of pages become lines of text"});
}

void tt_prepare_add_json(tt_prepare_table *table, bool *json)
{
    tt_prepare_add_option(table, (tt_option){.name = "json",
                                             .kind = TT_OPTION_FLAG,
                                             .target = json,
                                             .help = "print the result to stdout as JSON"});
}

bool tt_prepare_parse(const tt_command *command, int argc, char **argv, tt_prepare_input *input,
                      int *exit_status)
{
    char **arguments = NULL;
    int argument_count = 0;
    if (!tt_command_parse(command, argc, argv, &arguments, &argument_count, exit_status)) {
        return false;
    }
    for (int i = 0; i < argument_count; i++) {
        if (input->input.count == TT_OPTION_LIST_CAPACITY) {
            *exit_status =
                tt_command_usage(command->name, "--input: expected at most %d files, found more",
                                 TT_OPTION_LIST_CAPACITY);
            return false;
        }
        input->input.values[input->input.count++] = arguments[i];
    }
    return true;
}

tt_status tt_prepare_open_corpus(const tt_prepare_input *input, tt_corpus **corpus, tt_error *error)
{
    const tt_corpus_options options = {
        .format = (tt_corpus_format)input->format,
        .paths = input->input.values,
        .path_count = input->input.count,
        .keep_headings = input->keep_headings,
        .keep_lists = input->keep_lists,
    };
    return tt_corpus_open(&options, corpus, error);
}

void tt_prepare_print_counts(const tt_corpus_counts *counts)
{
    fprintf(stderr, "corpus: %" PRId64 " documents, %" PRId64 " lines, %.1f MB of text\n",
            counts->documents, counts->lines, (double)counts->bytes / 1e6);
    if (counts->pages > 0) {
        fprintf(stderr,
                "pages: %" PRId64 ", of which left out: %" PRId64 " redirects, %" PRId64
                " outside the main namespace, %" PRId64 " not wikitext, %" PRId64
                " oversized, %" PRId64 " without running text\n",
                counts->pages, counts->redirects, counts->other_namespaces, counts->other_models,
                counts->oversized, counts->empty);
    }
    if (counts->invalid_bytes > 0) {
        fprintf(stderr, "warning: %" PRId64 " bytes were not UTF-8 and became U+FFFD\n",
                counts->invalid_bytes);
    }
}

void tt_prepare_set_integer(json_t *object, const char *name, int64_t value)
{
    json_object_set_new(object, name, json_integer(value));
}

json_t *tt_prepare_counts_json(const tt_corpus_counts *counts)
{
    json_t *object = json_object();
    tt_prepare_set_integer(object, "documents", counts->documents);
    tt_prepare_set_integer(object, "lines", counts->lines);
    tt_prepare_set_integer(object, "bytes", counts->bytes);
    tt_prepare_set_integer(object, "invalid_bytes", counts->invalid_bytes);
    tt_prepare_set_integer(object, "pages", counts->pages);
    tt_prepare_set_integer(object, "redirects", counts->redirects);
    tt_prepare_set_integer(object, "other_namespaces", counts->other_namespaces);
    tt_prepare_set_integer(object, "other_models", counts->other_models);
    tt_prepare_set_integer(object, "oversized", counts->oversized);
    tt_prepare_set_integer(object, "empty", counts->empty);
    return object;
}

int tt_prepare_print_json(const char *command, json_t *object)
{
    int result = json_dumpf(object, stdout, JSON_INDENT(2));
    json_decref(object);
    if (result != 0 || putchar('\n') == EOF || fflush(stdout) != 0) {
        fprintf(stderr, "ttrain %s: stdout: writing failed\n", command);
        return TT_EXIT_FAILED;
    }
    return TT_EXIT_DONE;
}
