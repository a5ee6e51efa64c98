/* "Did you mean ...?": the known word nearest to a mistyped one. */
#ifndef TT_LAUNCH_SUGGEST_H
#define TT_LAUNCH_SUGGEST_H

/* The candidate that differs least from `word` by letters added, left out, changed or swapped; NULL
 * when none is close (more than about a third of the word would have to change). Ties go to the
 * first candidate. */
const char *tt_suggest_nearest(const char *word, const char *const *candidates, int count);

#endif
