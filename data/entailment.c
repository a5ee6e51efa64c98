#include "data/entailment.h"

#include "core/random.h"
#include "data/file.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { NAMES = 8, VALUES = 4, DETAILS = 4, TOLD = 2, LABELS = 3, LONGEST = 512, WORDS = 256 };

/* What the first sentence says about a detail, and the second; %s stands for the value. */
typedef struct {
    const char *told, *asked;
    const char *values[VALUES];
} detail;

static const char *const people[NAMES] = {"anna",  "boris", "clara", "david",
                                          "elena", "felix", "greta", "henry"};
static const char *const verbs[NAMES] = {"found",    "sold",    "carried", "hid",
                                         "repaired", "painted", "dropped", "bought"};
static const char *const things[NAMES] = {"boat",   "lamp", "chair",  "kettle",
                                          "violin", "coat", "mirror", "ladder"};

/* The first stands before the thing, the others after it. */
static const detail details[DETAILS] = {
    {" %s", "it was %s .", {"red", "blue", "green", "white"}},
    {" in the %s", "this happened in the %s .", {"kitchen", "harbour", "forest", "library"}},
    {" with %s", "%s was there too .", {"ines", "jonas", "karla", "louis"}},
    {" at %s", "the hour was %s .", {"dawn", "noon", "dusk", "midnight"}},
};

static const char *const labels[LABELS] = {"entailment", "neutral", "contradiction"};
static const char header[] = "sentence1\tsentence2\tgold_label\n";

/* --- rows --- */

static const char *draw(const char *const *values, tt_random *random)
{
    return values[tt_random_below(random, NAMES)];
}

static void append(char text[LONGEST], const char *format, const char *value)
{
    size_t used = strlen(text);
    snprintf(text + used, LONGEST - used, format, value);
}

/* Which details the first sentence tells: the first TOLD of a shuffled order. */
static void choose_details(int order[DETAILS], tt_random *random)
{
    for (int i = 0; i < DETAILS; i++) {
        order[i] = i;
    }
    for (int i = DETAILS - 1; i > 0; i--) {
        int j = (int)tt_random_below(random, (uint32_t)i + 1), kept = order[i];
        order[i] = order[j];
        order[j] = kept;
    }
}

static void write_first(const bool told[DETAILS], const int values[DETAILS], char text[LONGEST],
                        tt_random *random)
{
    text[0] = '\0';
    append(text, "%s", draw(people, random));
    append(text, " %s the", draw(verbs, random));
    for (int i = 0; i < DETAILS; i++) {
        if (told[i]) {
            append(text, details[i].told, details[i].values[values[i]]);
        }
        if (i == 0) {
            append(text, " %s", draw(things, random));
        }
    }
    append(text, " %s", ".");
}

static void write_row(FILE *stream, tt_random *random)
{
    int order[DETAILS], values[DETAILS];
    bool told[DETAILS] = {false};
    char first[LONGEST], second[LONGEST] = "";
    choose_details(order, random);
    for (int i = 0; i < DETAILS; i++) {
        told[order[i]] = i < TOLD;
        values[i] = (int)tt_random_below(random, VALUES);
    }
    write_first(told, values, first, random);
    uint32_t label = tt_random_below(random, LABELS);
    uint32_t place =
        label == 1 ? TOLD + tt_random_below(random, DETAILS - TOLD) : tt_random_below(random, TOLD);
    int asked = order[place], value = values[asked];
    if (label == 2) {
        value = (value + 1 + (int)tt_random_below(random, VALUES - 1)) % VALUES;
    }
    append(second, details[asked].asked, details[asked].values[value]);
    fprintf(stream, "%s\t%s\t%s\n", first, second, labels[label]);
}

static tt_status write_file(const char *path, int64_t rows, uint64_t seed, uint64_t stream,
                            tt_error *error)
{
    tt_file_output *output = NULL;
    tt_random random;
    tt_status status = TT_OK;
    TT_TRY(tt_file_create(path, &output, error));
    tt_random_start(&random, seed, stream);
    fputs(header, tt_file_stream(output));
    for (int64_t i = 0; i < rows && status == TT_OK; i++) {
        write_row(tt_file_stream(output), &random);
        status = i % 4096 == 0 ? tt_file_check(output, error) : TT_OK;
    }
    if (status != TT_OK) {
        tt_file_abandon(&output);
        return status;
    }
    return tt_file_commit(&output, error);
}

/* --- the vocabulary --- */

typedef struct {
    char words[WORDS][16];
    int count;
} word_list;

/* Adds the words of a text that are new; "%s" is none. */
static void add_words(word_list *list, const char *text)
{
    while (*text) {
        size_t length = strcspn(text, " ");
        char word[16];
        snprintf(word, sizeof word, "%.*s", (int)length, text);
        int known = 0;
        while (known < list->count && strcmp(list->words[known], word) != 0) {
            known++;
        }
        if (length > 0 && strcmp(word, "%s") != 0 && known == list->count && known < WORDS) {
            memcpy(list->words[list->count++], word, sizeof word);
        }
        text += length + (text[length] == ' ');
    }
}

static tt_status write_vocabulary(const char *path, tt_error *error)
{
    word_list list = {.count = 0};
    char text[sizeof list.words + WORDS] = "";
    size_t used = 0;
    add_words(&list, "[PAD] [UNK] [CLS] [SEP] [MASK] . the");
    for (int i = 0; i < DETAILS; i++) {
        add_words(&list, details[i].told);
        add_words(&list, details[i].asked);
        for (int j = 0; j < VALUES; j++) {
            add_words(&list, details[i].values[j]);
        }
    }
    for (int j = 0; j < NAMES; j++) {
        add_words(&list, people[j]);
        add_words(&list, verbs[j]);
        add_words(&list, things[j]);
    }
    for (int i = 0; i < list.count; i++) {
        used += (size_t)snprintf(text + used, sizeof text - used, "%s\n", list.words[i]);
    }
    return tt_file_write(path, text, used, error);
}

tt_status tt_entailment_write(int64_t rows, int64_t validation_rows, uint64_t seed,
                              const char *folder, tt_error *error)
{
    static const char *const names[] = {"vocab.txt", "train.tsv", "validation.tsv"};
    char paths[3][4096];
    TT_TRY(tt_file_make_folder(folder, error));
    for (int i = 0; i < 3; i++) {
        if ((size_t)snprintf(paths[i], sizeof paths[i], "%s/%s", folder, names[i]) >=
            sizeof paths[i]) {
            return tt_error_set(error, TT_INVALID_INPUT, "%.100s...: too long a path", folder);
        }
    }
    TT_TRY(write_vocabulary(paths[0], error));
    TT_TRY(write_file(paths[1], rows, seed, 0, error));
    return write_file(paths[2], validation_rows, seed, 1, error);
}
