/* Shards for tests: a folder that goes away, files in NVIDIA's layout made with HDF5 alone, so that
 * they can be wrong in any way, and files of our own writer. */
#ifndef TT_TESTS_SUPPORT_SHARD_FILES_H
#define TT_TESTS_SUPPORT_SHARD_FILES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "data/shard.h"

#include <dirent.h>
#include <hdf5.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define UNUSED __attribute__((unused))

typedef struct {
    char path[512];
} file_name;

static char test_folder[256];

static UNUSED int make_folder(void **state)
{
    (void)state;
    const char *base = getenv("TMPDIR");
    snprintf(test_folder, sizeof test_folder, "%s/ttrain_test_XXXXXX",
             base != NULL ? base : "/tmp");
    return mkdtemp(test_folder) == NULL;
}

static UNUSED file_name in_folder(const char *name)
{
    file_name file;
    snprintf(file.path, sizeof file.path, "%s/%s", test_folder, name);
    return file;
}

/* Entries of the test's folder. */
static UNUSED int count_files(void)
{
    DIR *folder = opendir(test_folder);
    assert_non_null(folder);
    int count = 0;
    for (struct dirent *entry = readdir(folder); entry != NULL; entry = readdir(folder)) {
        count += entry->d_name[0] != '.';
    }
    closedir(folder);
    return count;
}

static UNUSED int remove_folder(void **state)
{
    (void)state;
    DIR *folder = opendir(test_folder);
    if (folder == NULL) {
        return 1;
    }
    for (struct dirent *entry = readdir(folder); entry != NULL; entry = readdir(folder)) {
        if (entry->d_name[0] != '.') {
            unlink(in_folder(entry->d_name).path);
        }
    }
    closedir(folder);
    return rmdir(test_folder);
}

/* A file of NVIDIA's own making, "" where ../shared is not there. */
static UNUSED file_name nvidia_shard(int sequence_length)
{
    const char *shared = getenv("TTRAIN_SHARED_DIR");
    file_name file;
    snprintf(file.path, sizeof file.path, "%s/data/nvidia_shards/wikitext_training_0_seq%d.hdf5",
             shared != NULL ? shared : TTRAIN_SOURCE_DIR "/../shared", sequence_length);
    if (access(file.path, R_OK) != 0) {
        file.path[0] = '\0';
    }
    return file;
}

static UNUSED void assert_message(const tt_error *error, const char *fragment)
{
    if (strstr(error->message, fragment) == NULL) {
        fail_msg("\"%s\" does not hold \"%s\"", error->message, fragment);
    }
    assert_null(strchr(error->message, '\n'));
}

/* A small file in NVIDIA's layout; tests change it before it is written. */
enum { RAW_ROWS = 5, RAW_LENGTH = 12, RAW_ROOM = 3, RAW_VOCABULARY = 50 };

typedef struct {
    const char *name;
    hid_t type;
    int rank;
    hsize_t size[3];
    int64_t values[RAW_ROWS * RAW_LENGTH];
    bool absent;
} raw_dataset;

typedef enum { IDS, MASK, SEGMENTS, POSITIONS, MASKED_IDS, LABELS, RAW_DATASETS } raw_name;

typedef struct {
    raw_dataset sets[RAW_DATASETS];
} raw_shard;

static UNUSED raw_shard raw_valid(void)
{
    raw_shard raw = {{
        {.name = "input_ids", .rank = 2, .size = {RAW_ROWS, RAW_LENGTH, 1}},
        {.name = "input_mask", .rank = 2, .size = {RAW_ROWS, RAW_LENGTH, 1}},
        {.name = "segment_ids", .rank = 2, .size = {RAW_ROWS, RAW_LENGTH, 1}},
        {.name = "masked_lm_positions", .rank = 2, .size = {RAW_ROWS, RAW_ROOM, 1}},
        {.name = "masked_lm_ids", .rank = 2, .size = {RAW_ROWS, RAW_ROOM, 1}},
        {.name = "next_sentence_labels", .rank = 1, .size = {RAW_ROWS, 1, 1}},
    }};
    for (int i = 0; i < RAW_DATASETS; i++) {
        raw.sets[i].type =
            i == IDS || i == POSITIONS || i == MASKED_IDS ? H5T_STD_I32LE : H5T_STD_I8LE;
    }
    for (int row = 0; row < RAW_ROWS; row++) {
        int length = RAW_LENGTH - row;
        for (int i = 0; i < length; i++) {
            raw.sets[IDS].values[row * RAW_LENGTH + i] = 5 + (row * 7 + i) % 40;
            raw.sets[MASK].values[row * RAW_LENGTH + i] = 1;
            raw.sets[SEGMENTS].values[row * RAW_LENGTH + i] = i >= length / 2;
        }
        for (int i = 0; i < 1 + row % RAW_ROOM; i++) {
            raw.sets[POSITIONS].values[row * RAW_ROOM + i] = 1 + 2 * i;
            raw.sets[MASKED_IDS].values[row * RAW_ROOM + i] = 10 + row;
        }
        raw.sets[LABELS].values[row] = row % 2;
    }
    return raw;
}

static UNUSED void raw_write_dataset(hid_t file, const raw_dataset *set)
{
    hid_t space = H5Screate_simple(set->rank, set->size, NULL);
    hid_t dataset =
        H5Dcreate2(file, set->name, set->type, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    assert_true(dataset >= 0);
    assert_true(H5Dwrite(dataset, H5T_NATIVE_INT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, set->values) >=
                0);
    H5Dclose(dataset);
    H5Sclose(space);
}

static UNUSED file_name raw_write(const raw_shard *raw, const char *name)
{
    file_name path = in_folder(name);
    hid_t file = H5Fcreate(path.path, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    assert_true(file >= 0);
    for (int i = 0; i < RAW_DATASETS; i++) {
        if (!raw->sets[i].absent) {
            raw_write_dataset(file, &raw->sets[i]);
        }
    }
    assert_true(H5Fclose(file) >= 0);
    return path;
}

/* What our own test shards say about themselves. */
static UNUSED tt_shard_info sample_info(tt_masking_kind masking, int sequence_length)
{
    return (tt_shard_info){.masking = masking,
                           .sequence_length = sequence_length,
                           .max_predictions = masking == TT_MASKING_STATIC ? 4 : 0,
                           .vocabulary_size = 1000,
                           .vocabulary_hash = 0xFEDCBA9876543210u,
                           .tokenizer_hash = 0xF123456789ABCDEFu,
                           .special = {0, 1, 2, 3, 4},
                           .source = "made by a test",
                           .seed = UINT64_MAX - 5};
}

enum { SAMPLE_MAXIMUM_LENGTH = 64 };

/* Row `number` of a test shard: its tokens tell its number, so that a batch can be traced back.
 * [CLS] number / 900, number % 900, then tokens that continue words at every third place, [SEP]. */
typedef struct {
    int32_t ids[SAMPLE_MAXIMUM_LENGTH];
    uint8_t segments[SAMPLE_MAXIMUM_LENGTH], flags[SAMPLE_MAXIMUM_LENGTH];
    int32_t positions[4], masked_ids[4];
    tt_shard_row row;
} sample_row;

static UNUSED void make_sample_row(sample_row *sample, int64_t number, int sequence_length)
{
    int length = sequence_length - (int)(number % 5);
    for (int i = 0; i < length; i++) {
        sample->ids[i] = 100 + (int32_t)((number * 31 + i) % 900);
        sample->segments[i] = i > length / 2;
        sample->flags[i] = i % 3 == 2 ? TT_TOKEN_CONTINUES_WORD : 0;
    }
    sample->ids[0] = 2;
    sample->ids[1] = 100 + (int32_t)(number / 900);
    sample->ids[2] = 100 + (int32_t)(number % 900);
    sample->ids[length - 1] = 3;
    sample->flags[0] = sample->flags[1] = sample->flags[2] = TT_TOKEN_NEVER_MASKED;
    sample->flags[length - 1] = TT_TOKEN_NEVER_MASKED;
    int count = 1 + (int)(number % 4);
    for (int i = 0; i < count; i++) {
        sample->positions[i] = 3 + i;
        sample->masked_ids[i] = 200 + i;
    }
    sample->row = (tt_shard_row){.length = length,
                                 .input_ids = sample->ids,
                                 .segment_ids = sample->segments,
                                 .special_tokens_mask = sample->flags,
                                 .masked_count = count,
                                 .masked_positions = sample->positions,
                                 .masked_ids = sample->masked_ids,
                                 .next_sentence_label = (int)(number % 2)};
}

/* Writes rows first, first + 1, ... and returns the file's path. */
static UNUSED file_name write_samples(const char *name, const tt_shard_info *info, int64_t first,
                                      int64_t count)
{
    file_name path = in_folder(name);
    tt_error error = {.message = ""};
    tt_shard_writer *writer;
    if (tt_shard_writer_create(path.path, info, &writer, &error) != TT_OK) {
        fail_msg("%s", error.message);
    }
    sample_row sample;
    for (int64_t i = 0; i < count; i++) {
        make_sample_row(&sample, first + i, info->sequence_length);
        if (tt_shard_writer_append(writer, &sample.row, &error) != TT_OK) {
            fail_msg("%s", error.message);
        }
    }
    assert_int_equal(tt_shard_writer_rows(writer), count);
    if (tt_shard_writer_close(&writer, &error) != TT_OK) {
        fail_msg("%s", error.message);
    }
    return path;
}

#endif
