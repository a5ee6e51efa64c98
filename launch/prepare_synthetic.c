#include "data/corpus_synthetic.h"
#include "launch/prepare_options.h"

#include <inttypes.h>
#include <stdio.h>

int tt_prepare_synthetic_main(int argc, char **argv)
{
    int64_t documents = 4000, seed = 1;
    const char *output = NULL;
    bool json = false;
    tt_prepare_table table = {.count = 0};
    tt_prepare_add_option(&table, (tt_option){"documents", TT_OPTION_INTEGER, &documents, "N",
                                              "documents to write, some 750 bytes each", NULL, 1,
                                              (double)INT64_MAX, false});
    tt_prepare_add_option(&table, (tt_option){"output", TT_OPTION_TEXT, &output, "FILE",
                                              "the text file to write, for prepare text", NULL, 0,
                                              0, true});
    tt_prepare_add_option(&table, (tt_option){"seed", TT_OPTION_INTEGER, &seed, "N",
                                              "the same seed gives the same text", NULL, 0,
                                              (double)INT64_MAX, false});
    tt_prepare_add_json(&table, &json);
    const tt_command command = {
        .name = "prepare synthetic",
        .arguments = "",
        .purpose = "Writes a small English-like corpus with structure to learn: topics, people\n"
                   "and things that stay the same in a document, agreement, an order of events.",
        .example = "ttrain prepare synthetic --documents 4000 --seed 1 --output corpus.txt",
        .options = table.options,
        .option_count = table.count,
    };
    char **arguments = NULL;
    int argument_count = 0, exit_status = TT_EXIT_DONE;
    if (!tt_command_parse(&command, argc, argv, &arguments, &argument_count, &exit_status)) {
        return exit_status;
    }
    tt_error error;
    int64_t bytes = 0;
    if (tt_synthetic_write(documents, (uint64_t)seed, output, &bytes, &error) != TT_OK) {
        return tt_command_failed(command.name, &error);
    }
    fprintf(stderr, "%" PRId64 " documents, %.1f MB: %s\n", documents, (double)bytes / 1e6, output);
    if (!json) {
        return TT_EXIT_DONE;
    }
    json_t *object = json_object();
    json_object_set_new(object, "output", json_string(output));
    tt_prepare_set_integer(object, "documents", documents);
    tt_prepare_set_integer(object, "bytes", bytes);
    return tt_prepare_print_json(command.name, object);
}
