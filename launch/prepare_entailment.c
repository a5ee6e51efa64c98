#include "data/entailment.h"
#include "launch/prepare_options.h"

#include <inttypes.h>
#include <stdio.h>

int tt_prepare_entailment_main(int argc, char **argv)
{
    int64_t rows = 20000, validation_rows = 2000, seed = 1;
    const char *output = NULL;
    bool json = false;
    tt_prepare_table table = {.count = 0};
    tt_prepare_add_option(&table,
                          (tt_option){"rows", TT_OPTION_INTEGER, &rows, "N",
                                      "pairs of sentences to train on", NULL, 1, 1e7, false});
    tt_prepare_add_option(&table,
                          (tt_option){"validation-rows", TT_OPTION_INTEGER, &validation_rows, "N",
                                      "pairs to validate on", NULL, 1, 1e7, false});
    tt_prepare_add_option(&table, (tt_option){"output", TT_OPTION_TEXT, &output, "FOLDER",
                                              "gets train.tsv, validation.tsv and vocab.txt", NULL,
                                              0, 0, true});
    tt_prepare_add_option(&table, (tt_option){"seed", TT_OPTION_INTEGER, &seed, "N",
                                              "the same seed gives the same files", NULL, 0,
                                              (double)INT64_MAX, false});
    tt_prepare_add_json(&table, &json);
    const tt_command command = {
        .name = "prepare entailment",
        .arguments = "",
        .purpose = "Writes a small made-up task of entailment in the form of MNLI, with its "
                   "vocabulary: three\nclasses that only a comparison of the two sentences tells "
                   "apart.",
        .example = "ttrain prepare entailment --rows 20000 --output runs/entailment/data",
        .options = table.options,
        .option_count = table.count,
    };
    char **arguments = NULL;
    int argument_count = 0, exit_status = TT_EXIT_DONE;
    if (!tt_command_parse(&command, argc, argv, &arguments, &argument_count, &exit_status)) {
        return exit_status;
    }
    tt_error error;
    if (tt_entailment_write(rows, validation_rows, (uint64_t)seed, output, &error) != TT_OK) {
        return tt_command_failed(command.name, &error);
    }
    fprintf(stderr, "%" PRId64 " rows to train on, %" PRId64 " to validate on: %s\n", rows,
            validation_rows, output);
    if (!json) {
        return TT_EXIT_DONE;
    }
    json_t *object = json_object();
    json_object_set_new(object, "output", json_string(output));
    tt_prepare_set_integer(object, "rows", rows);
    tt_prepare_set_integer(object, "validation_rows", validation_rows);
    return tt_prepare_print_json(command.name, object);
}
