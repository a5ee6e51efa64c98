#include "launch/suggest.h"

#include <string.h>

enum { TT_SUGGEST_LONGEST = 64 };

static int minimum(int a, int b)
{
    return a < b ? a : b;
}

/* Damerau-Levenshtein distance with adjacent swaps; words longer than the table are never close. */
static int distance(const char *a, const char *b)
{
    int a_length = (int)strnlen(a, TT_SUGGEST_LONGEST + 1);
    int b_length = (int)strnlen(b, TT_SUGGEST_LONGEST + 1);
    if (a_length > TT_SUGGEST_LONGEST || b_length > TT_SUGGEST_LONGEST) {
        return TT_SUGGEST_LONGEST;
    }
    int rows[3][TT_SUGGEST_LONGEST + 1];
    for (int j = 0; j <= b_length; j++) {
        rows[0][j] = j;
    }
    for (int i = 1; i <= a_length; i++) {
        int *row = rows[i % 3], *above = rows[(i + 2) % 3], *two_above = rows[(i + 1) % 3];
        row[0] = i;
        for (int j = 1; j <= b_length; j++) {
            int change = above[j - 1] + (a[i - 1] != b[j - 1]);
            row[j] = minimum(change, 1 + minimum(above[j], row[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
                row[j] = minimum(row[j], two_above[j - 2] + 1);
            }
        }
    }
    return rows[a_length % 3][b_length];
}

const char *tt_suggest_nearest(const char *word, const char *const *candidates, int count)
{
    const char *nearest = NULL;
    int best = (int)strnlen(word, TT_SUGGEST_LONGEST) / 3 + 2;
    for (int i = 0; i < count; i++) {
        int d = distance(word, candidates[i]);
        /* A word that shares nothing with the candidate is no misspelling of it. */
        if (d < best && d < (int)strlen(candidates[i])) {
            best = d;
            nearest = candidates[i];
        }
    }
    return nearest;
}
