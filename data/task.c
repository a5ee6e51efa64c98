#include "data/task.h"

#include "data/tsv.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { MOST_CLASSES = 3 };

typedef struct {
    const char *first, *second; /* columns of the sentences */
    const char *label;          /* column of the class */
    const char *unlabelled;     /* what stands there where the class is not known */
    int classes;
    const char *names[MOST_CLASSES];
} task_form;

static const task_form forms[] = {
    [TT_TASK_MNLI] = {"sentence1",
                      "sentence2",
                      "gold_label",
                      "-",
                      3,
                      {"entailment", "neutral", "contradiction"}},
};

int tt_task_classes(tt_task_kind kind)
{
    return forms[kind].classes;
}

const char *tt_task_class_name(tt_task_kind kind, int number)
{
    return number >= 0 && number < forms[kind].classes ? forms[kind].names[number] : NULL;
}

/* What reading a file needs and fills. */
typedef struct {
    const task_form *form;
    const tt_tokenizer *tokenizer;
    tt_special_ids special;
    tt_tsv tsv;
    int first, second, label; /* columns */
    tt_encoding encodings[2];
    tt_shard *shard;
    int64_t unlabelled, cut;
} task_reader;

static bool is_text(tt_tsv_field field, const char *text)
{
    return field.length == strlen(text) && memcmp(field.text, text, field.length) == 0;
}

/* The class of the line read last; -1: not known. */
static tt_status read_label(const task_reader *reader, int *label, tt_error *error)
{
    tt_tsv_field field = reader->tsv.fields[reader->label];
    *label = -1;
    for (int i = 0; i < reader->form->classes; i++) {
        if (is_text(field, reader->form->names[i])) {
            *label = i;
        }
    }
    if (*label >= 0 || is_text(field, reader->form->unlabelled)) {
        return TT_OK;
    }
    return tt_error_set(
        error, TT_INVALID_INPUT, "%s: line %lld: expected %s %s, %s, %s or %s, found '%.*s'",
        reader->tsv.path, (long long)reader->tsv.line, reader->form->label, reader->form->names[0],
        reader->form->names[1], reader->form->names[2], reader->form->unlabelled,
        field.length < 60 ? (int)field.length : 60, field.text);
}

/* Shortens the two to `room` tokens together; true where that was needed. */
static bool cut_pair(int64_t *first, int64_t *second, int64_t room)
{
    bool cut = *first + *second > room;
    while (*first + *second > room) {
        if (*first > *second) {
            --*first;
        } else {
            --*second;
        }
    }
    return cut;
}

static void add_row(task_reader *reader, int label)
{
    tt_shard *shard = reader->shard;
    const tt_special_ids *special = &reader->special;
    int64_t length = shard->info.sequence_length, row = shard->info.rows++, at = 0;
    int32_t *ids = shard->input_ids + row * length;
    int64_t counts[2] = {reader->encodings[0].count, reader->encodings[1].count};
    reader->cut += cut_pair(&counts[0], &counts[1], length - 3);
    ids[at++] = special->cls;
    for (int part = 0; part < 2; part++) {
        int64_t begin = at;
        if (counts[part] > 0) {
            memcpy(ids + at, reader->encodings[part].ids, (size_t)counts[part] * sizeof *ids);
        }
        at += counts[part];
        ids[at++] = special->sep;
        memset(shard->segment_ids + row * length + begin, part, (size_t)(at - begin));
    }
    memset(shard->attention_mask + row * length, 1, (size_t)at);
    for (; at < length; at++) {
        ids[at] = special->pad;
    }
    shard->next_sentence_labels[row] = (uint8_t)label;
}

static tt_status read_line(task_reader *reader, tt_error *error)
{
    int label;
    TT_TRY(read_label(reader, &label, error));
    if (label < 0) {
        reader->unlabelled++;
        return TT_OK;
    }
    const int columns[2] = {reader->first, reader->second};
    for (int part = 0; part < 2; part++) {
        tt_tsv_field field = reader->tsv.fields[columns[part]];
        if (tt_tokenizer_encode(reader->tokenizer, field.text, field.length,
                                &reader->encodings[part], error) != TT_OK) {
            return tt_error_prefix(error, "%s: line %lld", reader->tsv.path,
                                   (long long)reader->tsv.line);
        }
    }
    add_row(reader, label);
    return TT_OK;
}

/* Room for as many rows as the file may have. */
static tt_status allocate_rows(task_reader *reader, int sequence_length, tt_error *error)
{
    int64_t lines = tt_tsv_lines_left(&reader->tsv);
    size_t rows = (size_t)(lines > 0 ? lines : 1), tokens = rows * (size_t)sequence_length;
    tt_shard *shard = calloc(1, sizeof *shard);
    reader->shard = shard;
    if (shard != NULL) {
        shard->input_ids = malloc(tokens * sizeof *shard->input_ids);
        shard->attention_mask = calloc(tokens, 1);
        shard->segment_ids = calloc(tokens, 1);
        shard->next_sentence_labels = malloc(rows);
    }
    if (shard == NULL || shard->input_ids == NULL || shard->attention_mask == NULL ||
        shard->segment_ids == NULL || shard->next_sentence_labels == NULL) {
        return tt_error_set(error, TT_OUT_OF_MEMORY, "%s: no memory for %lld rows of %d tokens",
                            reader->tsv.path, (long long)lines, sequence_length);
    }
    shard->info = (tt_shard_info){
        .masking = TT_MASKING_NONE,
        .sequence_length = sequence_length,
        .vocabulary_size = tt_tokenizer_vocabulary_size(reader->tokenizer),
        .vocabulary_hash = tt_tokenizer_vocabulary_hash(reader->tokenizer),
        .tokenizer_hash = tt_tokenizer_hash(reader->tokenizer),
        .special = reader->special,
        /* So that the fingerprint tells files of the same size apart. */
        .seed = XXH64(reader->tsv.bytes, reader->tsv.size, 0),
    };
    return TT_OK;
}

static tt_status read_file(task_reader *reader, const char *path, int sequence_length,
                           tt_error *error)
{
    TT_TRY(tt_tsv_open(path, &reader->tsv, error));
    TT_TRY(tt_tsv_column(&reader->tsv, reader->form->first, &reader->first, error));
    TT_TRY(tt_tsv_column(&reader->tsv, reader->form->second, &reader->second, error));
    TT_TRY(tt_tsv_column(&reader->tsv, reader->form->label, &reader->label, error));
    TT_TRY(allocate_rows(reader, sequence_length, error));
    for (;;) {
        bool more;
        TT_TRY(tt_tsv_next(&reader->tsv, &more, error));
        if (!more) {
            break;
        }
        TT_TRY(read_line(reader, error));
    }
    if (reader->shard->info.rows == 0) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "%s: expected rows with a class, found none in %lld lines", path,
                            (long long)reader->tsv.line);
    }
    return TT_OK;
}

static tt_status allocate_files(const char *const *paths, int count, tt_task_rows *rows,
                                tt_error *error)
{
    rows->shards = calloc((size_t)count, sizeof(tt_shard *));
    rows->names = calloc((size_t)count, sizeof(char *));
    bool enough = rows->shards != NULL && rows->names != NULL;
    rows->count = enough ? count : 0;
    for (int i = 0; enough && i < count; i++) {
        rows->names[i] = strdup(paths[i]);
        enough = rows->names[i] != NULL;
    }
    return enough
               ? TT_OK
               : tt_error_set(error, TT_OUT_OF_MEMORY, "no memory for %d files of a task", count);
}

tt_status tt_task_read(tt_task_kind kind, const char *const *paths, int count,
                       const tt_tokenizer *tokenizer, int sequence_length, tt_task_rows *rows,
                       tt_error *error)
{
    *rows = (tt_task_rows){.count = 0};
    if (count < 1) {
        return tt_error_set(error, TT_INVALID_INPUT, "no file of a task given, expected one");
    }
    TT_TRY(allocate_files(paths, count, rows, error));
    task_reader reader = {
        .form = &forms[kind], .tokenizer = tokenizer, .special = tt_tokenizer_special(tokenizer)};
    tt_status status = TT_OK;
    for (int i = 0; i < count && status == TT_OK; i++) {
        status = read_file(&reader, paths[i], sequence_length, error);
        tt_tsv_close(&reader.tsv);
        rows->shards[i] = reader.shard;
        reader.shard = NULL;
        rows->rows += status == TT_OK ? rows->shards[i]->info.rows : 0;
    }
    rows->unlabelled = reader.unlabelled;
    rows->cut = reader.cut;
    tt_encoding_free(&reader.encodings[0]);
    tt_encoding_free(&reader.encodings[1]);
    return status;
}

void tt_task_free(tt_task_rows *rows)
{
    for (int i = 0; i < rows->count; i++) {
        tt_shard_free(&rows->shards[i]);
        free(rows->names[i]);
    }
    free(rows->shards);
    free(rows->names);
    *rows = (tt_task_rows){.count = 0};
}

tt_row_source tt_task_source(const tt_task_rows *rows)
{
    return tt_row_source_memory(rows->shards, (const char *const *)rows->names, rows->count);
}
