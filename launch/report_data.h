/* What a report reads of a run's folder. Inside launch/report*.c only.
 *
 * A run need not be finished or whole: numbers that are missing or null are NAN, lines that are no
 * records are counted and passed over, a last line without end is that of a run that still writes.
 * Only metrics.jsonl must be there, with one record at least. */
#ifndef TT_LAUNCH_REPORT_DATA_H
#define TT_LAUNCH_REPORT_DATA_H

#include "core/error.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* Numbers of a record, with their keys in metrics.jsonl. */
typedef enum {
    TT_REPORT_LOSS,
    TT_REPORT_MASKED_LM_LOSS,
    TT_REPORT_NEXT_SENTENCE_LOSS,
    TT_REPORT_ACCURACY,
    TT_REPORT_MASKED_LM_ACCURACY,
    TT_REPORT_NEXT_SENTENCE_ACCURACY,
    TT_REPORT_VALIDATION_LOSS,
    TT_REPORT_VALIDATION_MASKED_LM_LOSS,
    TT_REPORT_VALIDATION_NEXT_SENTENCE_LOSS,
    TT_REPORT_VALIDATION_ACCURACY,
    TT_REPORT_VALIDATION_MASKED_LM_ACCURACY,
    TT_REPORT_VALIDATION_NEXT_SENTENCE_ACCURACY,
    TT_REPORT_LEARNING_RATE,
    TT_REPORT_CORE_LEARNING_RATE,
    TT_REPORT_DIAGONAL_LEARNING_RATE,
    TT_REPORT_GRADIENT_NORM,
    TT_REPORT_SKIPPED_STEPS,
    TT_REPORT_PARAMETERS,
    TT_REPORT_SIZE,         /* entries of tensor trains that are left after pruning */
    TT_REPORT_RELAXED_SIZE, /* the same with 1-norms instead of counts */
    TT_REPORT_SIZE_RATIO,   /* size / size at the start of the stage */
    TT_REPORT_SAMPLES,
    TT_REPORT_TOKENS,
    TT_REPORT_EPOCH,
    TT_REPORT_STEP_MS,
    TT_REPORT_DATA_WAIT_MS,
    TT_REPORT_TOKENS_PER_S,
    TT_REPORT_ELAPSED_S, /* of all the program's starts together */
    TT_REPORT_KEYS,
} tt_report_key;

/* Texts of a record. */
typedef enum {
    TT_REPORT_PHASE,
    TT_REPORT_STAGE,
    TT_REPORT_BRANCH,
    TT_REPORT_TEXTS
} tt_report_text_key;

enum {
    TT_REPORT_NAMES = 64, /* different texts of one kind; later ones are left out */
    TT_REPORT_NAME = 128, /* bytes of one */
    TT_REPORT_ORDER = 32, /* links of a train, the outer ones included */
    TT_REPORT_PATH = 4096,
};

typedef struct {
    double step;
    double values[TT_REPORT_KEYS];
    int texts[TT_REPORT_TEXTS]; /* indices into the run's names; -1: none */
} tt_report_record;

/* Ranks of one map, r_0 to r_m. */
typedef struct {
    int count; /* 0: not said */
    int64_t ranks[TT_REPORT_ORDER];
} tt_report_ranks;

/* The ranks of all maps from `step` on. */
typedef struct {
    double step;
    double parameters; /* of the whole model; NAN: not said */
    tt_report_ranks *maps;
    int map_count; /* maps that were known when it was read; later ones are not said */
} tt_report_compaction;

/* A map that is a tensor train. */
typedef struct {
    char name[TT_REPORT_NAME];
    int mode_count; /* 0: unknown */
    int64_t modes[TT_REPORT_ORDER];
    double inputs, outputs; /* NAN: unknown */
} tt_report_map;

typedef struct {
    char path[TT_REPORT_PATH]; /* the folder */
    char name[TT_REPORT_NAME]; /* of the recipe, else of the folder */
    char names[TT_REPORT_TEXTS][TT_REPORT_NAMES][TT_REPORT_NAME];
    int name_counts[TT_REPORT_TEXTS];
    tt_report_record *records; /* steps rise */
    int64_t record_count, record_capacity;
    tt_report_compaction *compactions; /* steps rise */
    int compaction_count;
    int64_t compaction_capacity;
    tt_report_map *maps;
    int map_count;
    int64_t map_capacity;
    double dense_parameters; /* of the same model without tensor trains; NAN: unknown */
    char *recipe;            /* its text; NULL: none */
    int64_t bad_lines, first_bad_line;
    bool torn; /* the last line has no end */
} tt_report_run;

/* Reads a run's folder (or its metrics.jsonl). Free the run in any case. */
tt_status tt_report_read(const char *path, tt_report_run *run, tt_error *error);
/* The records of a metrics file alone; `run` is empty before. */
tt_status tt_report_read_metrics(FILE *stream, const char *path, tt_report_run *run,
                                 tt_error *error);
void tt_report_free(tt_report_run *run);

/* Whether any record has the number. */
bool tt_report_has(const tt_report_run *run, tt_report_key key);
/* The newest finite value; NAN where there is none. */
double tt_report_last(const tt_report_run *run, tt_report_key key);
/* Parameters of the whole model, as the newest record or compaction has them; NAN: unknown. */
double tt_report_parameters(const tt_report_run *run);
/* Entries of a map's cores and inner diagonals; NAN where modes and ranks do not fit. */
double tt_report_map_parameters(const tt_report_map *map, const tt_report_ranks *ranks);
/* A train with a link of rank 0. */
bool tt_report_is_removed(const tt_report_ranks *ranks);
/* A map's ranks in compaction `index`; NULL where they are not said. */
const tt_report_ranks *tt_report_ranks_at(const tt_report_run *run, int index, int map);

#endif
