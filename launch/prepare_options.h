/* What the sub-commands of `ttrain prepare` share: where text comes from and how results are shown.
 */
#ifndef TT_LAUNCH_PREPARE_OPTIONS_H
#define TT_LAUNCH_PREPARE_OPTIONS_H

#include "data/corpus.h"
#include "launch/command_line.h"

#include <jansson.h>

enum { TT_PREPARE_OPTION_LIMIT = 32 };

/* A table of options under construction. */
typedef struct {
    tt_option options[TT_PREPARE_OPTION_LIMIT];
    int count;
} tt_prepare_table;

void tt_prepare_add_option(tt_prepare_table *table, tt_option option);

/* Set by the options below. */
typedef struct {
    tt_option_list input;
    int format; /* a tt_corpus_format */
    bool keep_headings, keep_lists, json;
} tt_prepare_input;

/* --input */
void tt_prepare_add_input(tt_prepare_table *table, tt_prepare_input *input);
/* --format auto|blocks|lines|wikitext */
void tt_prepare_add_format(tt_prepare_table *table, tt_prepare_input *input);
/* --keep-headings */
void tt_prepare_add_headings(tt_prepare_table *table, tt_prepare_input *input);
/* --keep-lists */
void tt_prepare_add_lists(tt_prepare_table *table, tt_prepare_input *input);
/* --json */
void tt_prepare_add_json(tt_prepare_table *table, bool *json);

/* Parses a command that has --input; files may also follow it, as a shell expands "--input *.txt".
 * As tt_command_parse: false where the caller returns `exit_status`. */
bool tt_prepare_parse(const tt_command *command, int argc, char **argv, tt_prepare_input *input,
                      int *exit_status);
tt_status tt_prepare_open_corpus(const tt_prepare_input *input, tt_corpus **corpus,
                                 tt_error *error);

/* What the corpus held: for people on stderr, and as a JSON object. */
void tt_prepare_print_counts(const tt_corpus_counts *counts);
json_t *tt_prepare_counts_json(const tt_corpus_counts *counts);
void tt_prepare_set_integer(json_t *object, const char *name, int64_t value);
/* Prints an object to stdout and frees it; returns an exit status. */
int tt_prepare_print_json(const char *command, json_t *object);

/* The sub-commands; argv[0] is their name. */
int tt_prepare_tokenizer_main(int argc, char **argv);
int tt_prepare_text_main(int argc, char **argv);
int tt_prepare_wikipedia_main(int argc, char **argv);
int tt_prepare_synthetic_main(int argc, char **argv);
int tt_prepare_entailment_main(int argc, char **argv);

#endif
