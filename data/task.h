/* Tasks that a model is fine-tuned for: sentences or pairs of sentences, and the class of each,
 * from the files that the task comes in to rows in memory that a loader takes batches from.
 *
 * A row is [CLS] first [SEP] second [SEP] with segments 0 and 1. Where a pair is too long, tokens
 * go from the end of the longer one, of the second where both are as long, until it fits. */
#ifndef TT_DATA_TASK_H
#define TT_DATA_TASK_H

#include "data/row_source.h"
#include "data/tokenizer.h"

/* MNLI: columns sentence1, sentence2 and gold_label, wherever the header has them: the original
 * files with 12 (train) and 16 (dev) columns, or those three alone. A gold_label of "-" means that
 * the annotators did not agree; such rows are left out. */
typedef enum { TT_TASK_NONE, TT_TASK_MNLI } tt_task_kind;

/* How many classes, and what they are called in the files; NULL for a class that there is not. */
int tt_task_classes(tt_task_kind kind);
const char *tt_task_class_name(tt_task_kind kind, int number);

typedef struct {
    tt_shard **shards; /* [count], one a file; masking TT_MASKING_NONE */
    char **names;      /* [count]: paths */
    int count;
    int64_t rows;
    int64_t unlabelled; /* rows left out */
    int64_t cut;        /* rows too long that lost tokens */
} tt_task_rows;

/* Reads and tokenises the files. Refuses what tsv.h refuses, a label that the task does not have,
 * and a file without a labelled row. Free with tt_task_free, in any case. */
tt_status tt_task_read(tt_task_kind kind, const char *const *paths, int count,
                       const tt_tokenizer *tokenizer, int sequence_length, tt_task_rows *rows,
                       tt_error *error);
void tt_task_free(tt_task_rows *rows);

/* The rows as a loader reads them; they must outlive it. */
tt_row_source tt_task_source(const tt_task_rows *rows);

#endif
