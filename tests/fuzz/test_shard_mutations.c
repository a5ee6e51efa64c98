/* Files that went wrong by chance or by intent: the reader either gives rows that keep every
 * promise of data/shard.h or a one-line error; it does not crash. */
#include "support/shard_files.h"

#include "core/random.h"

#include <sys/wait.h>

static const tt_shard_expectations expectations = {.vocabulary_size = RAW_VOCABULARY};

/* --- the same file with other values --- */

static bool in_range(const raw_shard *raw, raw_name set, int64_t limit)
{
    int64_t count = (int64_t)(raw->sets[set].size[0] * raw->sets[set].size[1]);
    for (int64_t i = 0; i < count; i++) {
        if (raw->sets[set].values[i] < 0 || raw->sets[set].values[i] >= limit) {
            return false;
        }
    }
    return true;
}

/* What makes a row valid, stated once more and as plainly as possible. */
static bool valid_row(const raw_shard *raw, int row)
{
    const int64_t *mask = raw->sets[MASK].values + (ptrdiff_t)row * RAW_LENGTH;
    const int64_t *positions = raw->sets[POSITIONS].values + (ptrdiff_t)row * RAW_ROOM;
    const int64_t *ids = raw->sets[MASKED_IDS].values + (ptrdiff_t)row * RAW_ROOM;
    for (int i = 1; i < RAW_LENGTH; i++) {
        if (mask[i] > mask[i - 1]) {
            return false;
        }
    }
    if (mask[0] == 0) {
        return false;
    }
    for (int i = 0; i < RAW_ROOM; i++) {
        if (positions[i] == 0) {
            if (ids[i] != 0 || (i + 1 < RAW_ROOM && positions[i + 1] != 0)) {
                return false;
            }
        } else if (mask[positions[i]] == 0 || (i > 0 && positions[i] <= positions[i - 1])) {
            return false;
        }
    }
    return true;
}

static bool valid(const raw_shard *raw)
{
    bool good = in_range(raw, IDS, RAW_VOCABULARY) && in_range(raw, MASK, 2) &&
                in_range(raw, SEGMENTS, 2) && in_range(raw, LABELS, 2) &&
                in_range(raw, POSITIONS, RAW_LENGTH) && in_range(raw, MASKED_IDS, RAW_VOCABULARY);
    for (int row = 0; good && row < RAW_ROWS; row++) {
        good = valid_row(raw, row);
    }
    return good;
}

static void mutate_value(raw_shard *raw, tt_random *random)
{
    static const int64_t values[] = {0, 0, 1, 1, 2, 3, -1, 11, 12, 49, 50, 255, 256, INT64_MAX};
    raw_dataset *set = &raw->sets[tt_random_below(random, RAW_DATASETS)];
    uint32_t count = (uint32_t)(set->size[0] * set->size[1]);
    set->values[tt_random_below(random, count)] =
        values[tt_random_below(random, sizeof values / sizeof values[0])];
}

static void test_values(void **state)
{
    (void)state;
    tt_random random;
    tt_random_start(&random, 1, 1);
    int accepted = 0;
    enum { ROUNDS = 1500 };
    for (int round = 0; round < ROUNDS; round++) {
        raw_shard raw = raw_valid();
        for (int i = 0; i < RAW_DATASETS; i++) {
            raw.sets[i].type = H5T_STD_I64LE;
        }
        for (uint32_t i = tt_random_below(&random, 3) + 1; i > 0; i--) {
            mutate_value(&raw, &random);
        }
        file_name file = raw_write(&raw, "values.hdf5");
        tt_shard *shard;
        tt_error error = {.message = ""};
        tt_status status = tt_shard_read(file.path, &expectations, &shard, &error);
        if ((status == TT_OK) != valid(&raw)) {
            fail_msg("round %d: %s", round, status == TT_OK ? "accepted" : error.message);
        }
        accepted += status == TT_OK;
        tt_shard_free(&shard);
    }
    /* Both outcomes must have been tried often. */
    assert_in_range(accepted, ROUNDS / 20, ROUNDS * 19 / 20);
}

/* --- the same file with other bytes --- */

typedef struct {
    size_t size;
    unsigned char bytes[1 << 17];
} contents;

static void read_contents(const char *path, contents *read)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    read->size = fread(read->bytes, 1, sizeof read->bytes, file);
    assert_in_range(read->size, 1, sizeof read->bytes - 1);
    fclose(file);
}

static void write_contents(const char *path, const contents *written)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(written->bytes, 1, written->size, file), written->size);
    assert_int_equal(fclose(file), 0);
}

static void mutate_bytes(contents *file, tt_random *random)
{
    for (uint32_t i = tt_random_below(random, 4) + 1; i > 0; i--) {
        size_t place = tt_random_below(random, (uint32_t)file->size);
        switch (tt_random_below(random, 4)) {
        case 0:
            file->bytes[place] ^= (unsigned char)(1u << tt_random_below(random, 8));
            break;
        case 1:
            file->bytes[place] = (unsigned char)tt_random_u32(random);
            break;
        case 2: {
            size_t count = tt_random_below(random, 16);
            count = count < file->size - place ? count : file->size - place;
            memset(file->bytes + place, tt_random_below(random, 2) != 0 ? 0xFF : 0, count);
            break;
        }
        default: {
            size_t from = tt_random_below(random, (uint32_t)file->size);
            size_t far_end = from > place ? from : place;
            size_t count = tt_random_below(random, 64);
            count = count < file->size - far_end ? count : file->size - far_end;
            memmove(file->bytes + place, file->bytes + from, count);
        }
        }
    }
}

/* Rows that were accepted keep their promises. */
static bool keeps_promises(const tt_shard *shard)
{
    int length = shard->info.sequence_length;
    bool good = shard->info.rows >= 1 && length >= 1;
    for (int64_t i = 0; good && i < shard->info.rows * length; i++) {
        good = shard->input_ids[i] >= 0 && shard->input_ids[i] < 1000 &&
               shard->attention_mask[i] <= 1 && shard->segment_ids[i] <= 1;
    }
    int64_t room = shard->info.max_predictions;
    for (int64_t i = 0; good && i < shard->info.rows * room; i++) {
        good = shard->masked_positions[i] >= 0 && shard->masked_positions[i] < length &&
               shard->masked_ids[i] >= 0 && shard->masked_ids[i] < 1000;
    }
    return good;
}

enum { MUTATIONS = 200 };

/* 0, or which promise was broken. */
static int read_mutated(const contents *original, uint64_t stream)
{
    tt_random random;
    tt_random_start(&random, 2, stream);
    static contents mutated;
    file_name file = in_folder("bytes.hdf5");
    for (int round = 0; round < MUTATIONS; round++) {
        mutated = *original;
        mutate_bytes(&mutated, &random);
        write_contents(file.path, &mutated);
        tt_shard *shard;
        tt_error error = {.message = ""};
        tt_shard_expectations limits = {.vocabulary_size = 1000};
        tt_status status = tt_shard_read(file.path, &limits, &shard, &error);
        if (status == TT_OK && !keeps_promises(shard)) {
            return 2;
        }
        if (status != TT_OK &&
            (strstr(error.message, file.path) == NULL || strchr(error.message, '\n') != NULL)) {
            return 3;
        }
        tt_shard_free(&shard);
    }
    return 0;
}

/* In children, because a crash should say which round it was; 60 seconds are more than enough. */
static void check_bytes(tt_masking_kind masking)
{
    tt_shard_info info = sample_info(masking, 20);
    file_name file = write_samples("original.hdf5", &info, 0, 300);
    static contents original;
    read_contents(file.path, &original);
    for (uint64_t stream = 0; stream < 4; stream++) {
        fflush(NULL);
        pid_t child = fork();
        if (child == 0) {
            alarm(60);
            _exit(read_mutated(&original, stream));
        }
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
            fail_msg("stream %d: status %d", (int)stream, status);
        }
    }
}

static void test_bytes_of_static_shard(void **state)
{
    (void)state;
    check_bytes(TT_MASKING_STATIC);
}

static void test_bytes_of_dynamic_shard(void **state)
{
    (void)state;
    check_bytes(TT_MASKING_DYNAMIC);
}

/* A file whose input_ids are one chunk of all rows, without filters. */
static file_name write_one_chunk(const char *name)
{
    raw_shard raw = raw_valid();
    raw_dataset ids = raw.sets[IDS];
    raw.sets[IDS].absent = true;
    file_name path = raw_write(&raw, name);
    hid_t file = H5Fopen(path.path, H5F_ACC_RDWR, H5P_DEFAULT);
    hid_t space = H5Screate_simple(2, ids.size, NULL), creation = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_chunk(creation, 2, ids.size);
    hid_t dataset =
        H5Dcreate2(file, ids.name, H5T_STD_I32LE, space, H5P_DEFAULT, creation, H5P_DEFAULT);
    assert_true(H5Dwrite(dataset, H5T_NATIVE_INT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, ids.values) >=
                0);
    H5Dclose(dataset);
    H5Pclose(creation);
    H5Sclose(space);
    H5Fclose(file);
    return path;
}

/* Looks for `pattern`, which must stand in the file once, and writes `value` at its byte `place`.
 */
static void change_byte(const char *path, const void *pattern, size_t size, size_t place,
                        unsigned char value)
{
    static contents file;
    read_contents(path, &file);
    int found = 0;
    for (size_t i = 0; i + size <= file.size; i++) {
        if (memcmp(file.bytes + i, pattern, size) == 0) {
            file.bytes[i + place] = value;
            found++;
        }
    }
    assert_int_equal(found, 1);
    write_contents(path, &file);
}

/* The layout in the dataset's header: rows, values a row, bytes a value. */
static void test_chunk_larger_than_the_dataset(void **state)
{
    (void)state;
    file_name path = write_one_chunk("wide.hdf5");
    tt_shard *shard;
    tt_error error = {.message = ""};
    assert_int_equal(tt_shard_read(path.path, &expectations, &shard, &error), TT_OK);
    tt_shard_free(&shard);
    const uint32_t layout[] = {RAW_ROWS, RAW_LENGTH, 4};
    change_byte(path.path, layout, sizeof layout, 5, 0x80);
    assert_int_equal(tt_shard_read(path.path, &expectations, &shard, &error), TT_INVALID_INPUT);
    assert_message(&error, "input_ids: found chunks of 5 by 32780 values");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_bytes_of_static_shard),
        cmocka_unit_test(test_bytes_of_dynamic_shard),
        cmocka_unit_test(test_chunk_larger_than_the_dataset),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
