#include "data/masking.h"

#include <math.h>
#include <stdlib.h>

enum { SPECIAL_COUNT = 5 };

struct tt_masking {
    tt_masking_options options;
    int32_t never[SPECIAL_COUNT]; /* distinct special ids, ascending */
    int never_count;
    int32_t *words;  /* [sequence_length]: first tokens of the words that may be masked */
    uint8_t *chosen; /* [sequence_length] */
    uint8_t
        *members; /* [sequence_length]: 0 = never masked, 1 = starts a word, 2 = continues one */
};

static int compare_ids(const void *left, const void *right)
{
    int32_t a = *(const int32_t *)left, b = *(const int32_t *)right;
    return (a > b) - (a < b);
}

static tt_status collect_special_ids(const tt_masking_options *options, tt_masking *masking,
                                     tt_error *error)
{
    const tt_special_ids *special = &options->special;
    const int32_t ids[SPECIAL_COUNT] = {special->pad, special->unknown, special->cls, special->sep,
                                        special->mask};
    static const char *const names[SPECIAL_COUNT] = {"pad", "unknown", "cls", "sep", "mask"};
    for (int i = 0; i < SPECIAL_COUNT; i++) {
        if (ids[i] < -1 || ids[i] >= options->vocabulary_size) {
            return tt_error_set(error, TT_INVALID_INPUT,
                                "masking: %s id %d, expected one of the vocabulary's %d ids or -1",
                                names[i], ids[i], options->vocabulary_size);
        }
        if (i < 4 && ids[i] >= 0 && ids[i] == special->mask) {
            return tt_error_set(error, TT_INVALID_INPUT,
                                "masking: mask id %d is the %s id too, expected an id of its own",
                                ids[i], names[i]);
        }
    }
    if (special->mask < 0) {
        return tt_error_set(error, TT_INVALID_INPUT, "masking: the vocabulary has no mask id");
    }
    int32_t sorted[SPECIAL_COUNT];
    for (int i = 0; i < SPECIAL_COUNT; i++) {
        sorted[i] = ids[i];
    }
    qsort(sorted, SPECIAL_COUNT, sizeof sorted[0], compare_ids);
    for (int i = 0; i < SPECIAL_COUNT; i++) {
        if (sorted[i] >= 0 && (i == 0 || sorted[i] != sorted[i - 1])) {
            masking->never[masking->never_count++] = sorted[i];
        }
    }
    if (masking->never_count >= options->vocabulary_size) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "masking: all of the vocabulary's %d ids are special",
                            options->vocabulary_size);
    }
    return TT_OK;
}

static tt_status check_options(const tt_masking_options *options, int sequence_length,
                               tt_error *error)
{
    if (!(options->probability > 0 && options->probability <= 1)) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "masking: probability %g, expected more than 0 and at most 1",
                            options->probability);
    }
    if (options->max_predictions < 1) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "masking: room for %d predictions a row, expected at least 1",
                            options->max_predictions);
    }
    if (sequence_length < 1) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "masking: sequence length %d, expected at least 1", sequence_length);
    }
    return TT_OK;
}

tt_status tt_masking_create(const tt_masking_options *options, int sequence_length,
                            tt_masking **masking, tt_error *error)
{
    *masking = NULL;
    TT_TRY(check_options(options, sequence_length, error));
    tt_masking *created = calloc(1, sizeof *created);
    if (created == NULL) {
        return tt_error_set(error, TT_OUT_OF_MEMORY, "masking: out of memory");
    }
    created->options = *options;
    size_t length = (size_t)sequence_length;
    created->words = malloc(length * sizeof *created->words);
    created->chosen = malloc(length);
    created->members = malloc(length);
    tt_status status = TT_OK;
    if (created->words == NULL || created->chosen == NULL || created->members == NULL) {
        status = tt_error_set(error, TT_OUT_OF_MEMORY, "masking: no memory for rows of %d tokens",
                              sequence_length);
    } else {
        status = collect_special_ids(options, created, error);
    }
    if (status != TT_OK) {
        tt_masking_free(&created);
        return status;
    }
    *masking = created;
    return TT_OK;
}

void tt_masking_free(tt_masking **masking)
{
    if (*masking != NULL) {
        free((*masking)->words);
        free((*masking)->chosen);
        free((*masking)->members);
        free(*masking);
        *masking = NULL;
    }
}

static bool is_special(const tt_masking *masking, int32_t id)
{
    for (int i = 0; i < masking->never_count; i++) {
        if (id == masking->never[i]) {
            return true;
        }
    }
    return false;
}

/* Uniform over the ids that are not special: the n-th of them, found by stepping over the sorted
 * special ids below it. */
static int32_t draw_id(const tt_masking *masking, tt_random *random)
{
    int32_t id = (int32_t)tt_random_below(
        random, (uint32_t)(masking->options.vocabulary_size - masking->never_count));
    for (int i = 0; i < masking->never_count && masking->never[i] <= id; i++) {
        id++;
    }
    return id;
}

/* Fills members and words; returns the number of words. A word is a token that may be masked and
 * the ones that continue it right behind it; without whole-word masking every token is a word. */
static int find_words(tt_masking *masking, int length, const int32_t *ids,
                      const uint8_t *special_tokens_mask)
{
    int words = 0;
    for (int i = 0; i < length; i++) {
        uint8_t flags = special_tokens_mask != NULL ? special_tokens_mask[i] : 0;
        bool member = (flags & TT_TOKEN_NEVER_MASKED) == 0 && !is_special(masking, ids[i]);
        bool continues = masking->options.whole_word && (flags & TT_TOKEN_CONTINUES_WORD) != 0 &&
                         i > 0 && masking->members[i - 1] != 0;
        masking->members[i] = (uint8_t)(member ? (continues ? 2 : 1) : 0);
        masking->chosen[i] = 0;
        if (member && !continues) {
            masking->words[words++] = i;
        }
    }
    return words;
}

static int word_size(const tt_masking *masking, int first, int length)
{
    int size = 1;
    while (first + size < length && masking->members[first + size] == 2) {
        size++;
    }
    return size;
}

/* Draws words without repetition until `wanted` tokens are chosen or none is left that fits. */
static void choose_words(tt_masking *masking, tt_random *random, int words, int length, int wanted)
{
    int chosen = 0;
    for (int i = 0; i < words && chosen < wanted; i++) {
        int j = i + (int)tt_random_below(random, (uint32_t)(words - i));
        int32_t first = masking->words[j];
        masking->words[j] = masking->words[i];
        masking->words[i] = first;
        int size = word_size(masking, first, length);
        if (chosen + size <= wanted) {
            for (int k = 0; k < size; k++) {
                masking->chosen[first + k] = 1;
            }
            chosen += size;
        }
    }
    if (chosen == 0 && words > 0) {
        for (int k = 0; k < wanted; k++) {
            masking->chosen[masking->words[0] + k] = 1;
        }
    }
}

int tt_masking_apply(tt_masking *masking, tt_random *random, int length, int32_t *ids,
                     const uint8_t *special_tokens_mask, int32_t *positions, int32_t *labels)
{
    double share = rint(masking->options.probability * length);
    int wanted = share > 1 ? (int)share : 1;
    if (wanted > masking->options.max_predictions) {
        wanted = masking->options.max_predictions;
    }
    int words = find_words(masking, length, ids, special_tokens_mask);
    choose_words(masking, random, words, length, wanted);

    int count = 0;
    for (int i = 0; i < length; i++) {
        if (masking->chosen[i] == 0) {
            continue;
        }
        positions[count] = i;
        labels[count] = ids[i];
        count++;
        uint32_t tenth = tt_random_below(random, 10);
        if (tenth < 8) {
            ids[i] = masking->options.special.mask;
        } else if (tenth == 8) {
            ids[i] = draw_id(masking, random);
        }
    }
    return count;
}
