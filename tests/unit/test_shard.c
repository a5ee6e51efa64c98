#include "support/shard_files.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

enum { BERT_VOCABULARY = 30522 };

static const tt_shard_expectations raw_expectations = {.vocabulary_size = RAW_VOCABULARY};

static tt_shard *read_shard(const char *path, const tt_shard_expectations *expectations)
{
    tt_shard *shard;
    tt_error error = {.message = ""};
    if (tt_shard_read(path, expectations, &shard, &error) != TT_OK) {
        fail_msg("%s", error.message);
    }
    return shard;
}

/* Reading fails, and the message holds the path and every fragment (NULL ends them). */
static void refuse(const char *path, const tt_shard_expectations *expectations,
                   const char *fragment, const char *second)
{
    tt_shard *shard;
    tt_error error = {.message = ""};
    tt_status status = tt_shard_read(path, expectations, &shard, &error);
    assert_int_not_equal(status, TT_OK);
    assert_int_equal(status, error.status);
    assert_null(shard);
    assert_message(&error, path);
    assert_message(&error, fragment);
    if (second != NULL) {
        assert_message(&error, second);
    }
}

static void refuse_raw(const raw_shard *raw, const char *fragment, const char *second)
{
    file_name file = raw_write(raw, "hostile.hdf5");
    refuse(file.path, &raw_expectations, fragment, second);
}

/* --- what is written comes back --- */

static void check_sample_rows(const tt_shard *shard, int64_t first)
{
    int length = shard->info.sequence_length, room = shard->info.max_predictions;
    sample_row sample;
    for (int64_t row = 0; row < shard->info.rows; row++) {
        make_sample_row(&sample, first + row, length);
        for (int i = 0; i < length; i++) {
            bool real = i < sample.row.length;
            int64_t at = row * length + i;
            assert_int_equal(shard->input_ids[at], real ? sample.ids[i] : shard->info.special.pad);
            assert_int_equal(shard->attention_mask[at], real);
            assert_int_equal(shard->segment_ids[at], real ? sample.segments[i] : 0);
            if (shard->special_tokens_mask != NULL) {
                assert_int_equal(shard->special_tokens_mask[at],
                                 real ? sample.flags[i] : TT_TOKEN_NEVER_MASKED);
            }
        }
        for (int i = 0; i < room; i++) {
            bool real = i < sample.row.masked_count;
            assert_int_equal(shard->masked_positions[row * room + i],
                             real ? sample.positions[i] : 0);
            assert_int_equal(shard->masked_ids[row * room + i], real ? sample.masked_ids[i] : 0);
        }
        assert_int_equal(shard->next_sentence_labels[row], sample.row.next_sentence_label);
    }
}

static void check_round_trip(tt_masking_kind masking, int64_t rows)
{
    tt_shard_info written = sample_info(masking, 20);
    file_name file = write_samples("round_trip.hdf5", &written, 0, rows);
    tt_shard *shard = read_shard(file.path, NULL);
    const tt_shard_info *info = &shard->info;
    assert_int_equal(info->version, TT_SHARD_VERSION);
    assert_int_equal(info->masking, masking);
    assert_int_equal(info->rows, rows);
    assert_int_equal(info->sequence_length, 20);
    assert_int_equal(info->max_predictions, written.max_predictions);
    assert_int_equal(info->vocabulary_size, 1000);
    assert_true(info->vocabulary_hash == written.vocabulary_hash);
    assert_true(info->tokenizer_hash == written.tokenizer_hash);
    assert_true(info->seed == written.seed);
    assert_memory_equal(&info->special, &written.special, sizeof info->special);
    assert_string_equal(info->source, "made by a test");
    assert_int_equal(shard->special_tokens_mask != NULL, masking == TT_MASKING_DYNAMIC);
    assert_int_equal(shard->masked_ids != NULL, masking == TT_MASKING_STATIC);
    check_sample_rows(shard, 0);
    tt_shard_free(&shard);
    assert_null(shard);
}

/* One row, a whole block of the writer, and blocks with a rest. */
static void test_round_trip(void **state)
{
    (void)state;
    static const int64_t rows[] = {1, 256, 700};
    for (int i = 0; i < 3; i++) {
        check_round_trip(TT_MASKING_STATIC, rows[i]);
        check_round_trip(TT_MASKING_DYNAMIC, rows[i]);
    }
}

static void assert_stored_as(hid_t file, const char *name, hid_t type, int rank)
{
    hid_t dataset = H5Dopen2(file, name, H5P_DEFAULT);
    assert_true(dataset >= 0);
    hid_t stored = H5Dget_type(dataset), space = H5Dget_space(dataset);
    assert_true(H5Tequal(stored, type) > 0);
    assert_int_equal(H5Sget_simple_extent_ndims(space), rank);
    H5Sclose(space);
    H5Tclose(stored);
    H5Dclose(dataset);
}

/* Names, types and padding are those of NVIDIA's script, and without its attributes our file is
 * read as theirs. */
static void test_static_shard_is_nvidia_layout(void **state)
{
    (void)state;
    tt_shard_info info = sample_info(TT_MASKING_STATIC, 20);
    file_name path = write_samples("ours.hdf5", &info, 0, 30);
    hid_t file = H5Fopen(path.path, H5F_ACC_RDWR, H5P_DEFAULT);
    assert_stored_as(file, "input_ids", H5T_STD_I32LE, 2);
    assert_stored_as(file, "input_mask", H5T_STD_I8LE, 2);
    assert_stored_as(file, "segment_ids", H5T_STD_I8LE, 2);
    assert_stored_as(file, "masked_lm_positions", H5T_STD_I32LE, 2);
    assert_stored_as(file, "masked_lm_ids", H5T_STD_I32LE, 2);
    assert_stored_as(file, "next_sentence_labels", H5T_STD_I8LE, 1);
    assert_true(H5Adelete(file, "ttrain_shard_version") >= 0);
    H5Fclose(file);
    tt_shard *shard = read_shard(path.path, NULL);
    assert_int_equal(shard->info.version, 0);
    assert_int_equal(shard->info.vocabulary_size, 0);
    assert_int_equal(shard->info.special.pad, -1);
    shard->info.special.pad = 0;
    check_sample_rows(shard, 0);
    tt_shard_free(&shard);
}

/* --- NVIDIA's own files --- */

static void check_nvidia_rows(const tt_shard *shard)
{
    int length = shard->info.sequence_length, room = shard->info.max_predictions;
    for (int64_t row = 0; row < shard->info.rows; row++) {
        int tokens = 0, count = 0;
        while (tokens < length && shard->attention_mask[row * length + tokens] != 0) {
            tokens++;
        }
        while (count < room && shard->masked_positions[row * room + count] != 0) {
            count++;
        }
        assert_int_equal(shard->input_ids[row * length], 101);
        int expected = (int)rint(0.15 * tokens);
        expected = expected > 1 ? expected : 1;
        assert_int_equal(count, expected < room ? expected : room);
    }
}

static void check_nvidia_file(int sequence_length, int64_t rows, int room)
{
    file_name file = nvidia_shard(sequence_length);
    if (file.path[0] == '\0') {
        skip();
    }
    tt_shard_info info;
    tt_error error = {.message = ""};
    assert_int_equal(tt_shard_inspect(file.path, &info, &error), TT_OK);
    assert_int_equal(info.version, 0);
    assert_int_equal(info.masking, TT_MASKING_STATIC);
    assert_int_equal(info.rows, rows);
    assert_int_equal(info.sequence_length, sequence_length);
    assert_int_equal(info.max_predictions, room);
    tt_shard_expectations expectations = {.sequence_length = sequence_length,
                                          .vocabulary_size = BERT_VOCABULARY,
                                          .max_predictions = room,
                                          .tokenizer_hash = 1};
    tt_shard *shard = read_shard(file.path, &expectations);
    check_nvidia_rows(shard);
    tt_shard_free(&shard);
    expectations.vocabulary_size = 20000;
    refuse(file.path, &expectations, "input_ids: row 0, place ", "expected 0 to 19999");
    expectations.vocabulary_size = BERT_VOCABULARY;
    expectations.max_predictions = room - 1;
    refuse(file.path, &expectations, "masked positions a row, expected at most", NULL);
    expectations.max_predictions = 0;
    expectations.sequence_length = 64;
    refuse(file.path, &expectations, "expected sequence length 64", NULL);
}

static void test_nvidia_128(void **state)
{
    (void)state;
    check_nvidia_file(128, 1072, 20);
}

static void test_nvidia_512(void **state)
{
    (void)state;
    check_nvidia_file(512, 289, 80);
}

static void test_any_integer_type(void **state)
{
    (void)state;
    const hid_t types[] = {H5T_STD_I8LE,  H5T_STD_U8LE,  H5T_STD_I16LE, H5T_STD_I16BE,
                           H5T_STD_U32LE, H5T_STD_I32BE, H5T_STD_I64LE, H5T_STD_U64BE};
    raw_shard raw = raw_valid();
    for (size_t type = 0; type < sizeof types / sizeof types[0]; type++) {
        for (int i = 0; i < RAW_DATASETS; i++) {
            raw.sets[i].type = types[type];
        }
        file_name file = raw_write(&raw, "types.hdf5");
        tt_shard *shard = read_shard(file.path, &raw_expectations);
        for (int i = 0; i < RAW_ROWS * RAW_LENGTH; i++) {
            assert_int_equal(shard->input_ids[i], raw.sets[IDS].values[i]);
            assert_int_equal(shard->attention_mask[i], raw.sets[MASK].values[i]);
            assert_int_equal(shard->segment_ids[i], raw.sets[SEGMENTS].values[i]);
        }
        for (int i = 0; i < RAW_ROWS * RAW_ROOM; i++) {
            assert_int_equal(shard->masked_positions[i], raw.sets[POSITIONS].values[i]);
            assert_int_equal(shard->masked_ids[i], raw.sets[MASKED_IDS].values[i]);
        }
        tt_shard_free(&shard);
    }
}

/* --- files that are wrong --- */

typedef struct {
    raw_name set;
    int index;
    int64_t value;
    const char *where, *what;
} wrong_value;

static void test_values_out_of_range(void **state)
{
    (void)state;
    static const wrong_value wrong[] = {
        {IDS, 13, 50, "input_ids: row 1, place 1", "found 50, expected 0 to 49"},
        {IDS, 59, -1, "input_ids: row 4, place 11", "found -1, expected 0 to 49"},
        {IDS, 0, INT64_MAX, "input_ids: row 0, place 0", "found 9223372036854775807"},
        {IDS, 0, (int64_t)1 << 32, "input_ids: row 0, place 0", "found 4294967296"},
        {MASK, 12, 2, "input_mask: row 1, place 0", "found 2, expected 0 to 1"},
        {MASK, 12, -1, "input_mask: row 1, place 0", "found -1, expected 0 to 1"},
        {MASK, 12, 256, "input_mask: row 1, place 0", "found 256, expected 0 to 1"},
        {MASK, 14, 0, "input_mask: row 1, place 3", "expected ones followed by zeros"},
        {MASK, 0, 0, "input_mask: row 0, place 1", "expected ones followed by zeros"},
        {SEGMENTS, 30, 3, "segment_ids: row 2, place 6", "found 3, expected 0 to 1"},
        {LABELS, 4, 2, "next_sentence_labels: row 4", "found 2, expected 0 to 1"},
        {LABELS, 3, -1, "next_sentence_labels: row 3", "found -1, expected 0 to 1"},
        {POSITIONS, 0, 12, "masked_lm_positions: row 0, place 0", "found 12, expected 0 to 11"},
        {POSITIONS, 12, 8, "masked_lm_positions: row 4, place 0", "found 8, expected 1 to 7"},
        {POSITIONS, 4, 1, "masked_lm_positions: row 1, place 1", "found 1, expected 2 to 10"},
        {POSITIONS, 7, 0, "masked_lm_positions: row 2, place 2", "expected 0 after the list's end"},
        {POSITIONS, 8, 0, "masked_lm_ids: row 2, place 2", "expected 0 after the list's end"},
        {MASKED_IDS, 2, 9, "masked_lm_ids: row 0, place 2", "expected 0 after the list's end"},
        {MASKED_IDS, 3, 50, "masked_lm_ids: row 1, place 0", "found 50, expected 0 to 49"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        raw_shard raw = raw_valid();
        raw.sets[wrong[i].set].type = H5T_STD_I64LE;
        raw.sets[wrong[i].set].values[wrong[i].index] = wrong[i].value;
        refuse_raw(&raw, wrong[i].where, wrong[i].what);
    }
}

static void test_row_without_tokens(void **state)
{
    (void)state;
    raw_shard raw = raw_valid();
    for (int i = 0; i < RAW_LENGTH; i++) {
        raw.sets[MASK].values[3 * RAW_LENGTH + i] = 0;
    }
    refuse_raw(&raw, "input_mask: row 3", "found no token, expected at least one");
}

static void test_missing_datasets(void **state)
{
    (void)state;
    for (int i = 0; i < RAW_DATASETS; i++) {
        raw_shard raw = raw_valid();
        raw.sets[i].absent = true;
        refuse_raw(&raw, raw.sets[i].name, "found no such dataset, expected one");
    }
}

static void test_wrong_types_and_ranks(void **state)
{
    (void)state;
    for (int i = 0; i < RAW_DATASETS; i++) {
        raw_shard raw = raw_valid();
        raw.sets[i].type = H5T_IEEE_F32LE;
        refuse_raw(&raw, raw.sets[i].name, "found another type, expected integers");
        raw = raw_valid();
        raw.sets[i].rank++;
        refuse_raw(&raw, raw.sets[i].name,
                   raw.sets[i].rank == 3 ? "found 3 dimensions, expected 2"
                                         : "found 2 dimensions, expected 1");
        raw = raw_valid();
        raw.sets[i].rank = 0;
        refuse_raw(&raw, raw.sets[i].name, "found 0 dimensions");
    }
}

static void test_shapes_that_disagree(void **state)
{
    (void)state;
    for (int i = 1; i < RAW_DATASETS; i++) {
        raw_shard raw = raw_valid();
        raw.sets[i].size[0] = RAW_ROWS - 1;
        refuse_raw(&raw, raw.sets[i].name, "found 4 rows, expected 5");
    }
    raw_shard raw = raw_valid();
    raw.sets[MASK].size[1] = RAW_LENGTH - 1;
    refuse_raw(&raw, "input_mask", "found rows of 11 values, expected 12");
    raw = raw_valid();
    raw.sets[SEGMENTS].size[1] = RAW_LENGTH - 1;
    refuse_raw(&raw, "segment_ids", "found rows of 11 values, expected 12");
    raw = raw_valid();
    raw.sets[MASKED_IDS].size[1] = RAW_ROOM - 1;
    refuse_raw(&raw, "masked_lm_ids", "found rows of 2 values, expected 3");
}

static void test_empty_shard(void **state)
{
    (void)state;
    raw_shard raw = raw_valid();
    for (int i = 0; i < RAW_DATASETS; i++) {
        raw.sets[i].size[0] = 0;
    }
    refuse_raw(&raw, "the shard is empty, expected at least one row", NULL);
    raw = raw_valid();
    raw.sets[IDS].size[1] = raw.sets[MASK].size[1] = raw.sets[SEGMENTS].size[1] = 0;
    refuse_raw(&raw, "found rows of 0 tokens and 3 predictions", NULL);
}

/* A shape of a hundred million rows with nothing stored behind it must not take the memory. */
static void test_shape_without_data(void **state)
{
    (void)state;
    raw_shard raw = raw_valid();
    raw.sets[IDS].absent = true;
    file_name path = raw_write(&raw, "hollow.hdf5");
    hid_t file = H5Fopen(path.path, H5F_ACC_RDWR, H5P_DEFAULT);
    hsize_t size[2] = {100000000, RAW_LENGTH}, chunk[2] = {100, RAW_LENGTH};
    hid_t space = H5Screate_simple(2, size, NULL), creation = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_chunk(creation, 2, chunk);
    hid_t dataset =
        H5Dcreate2(file, "input_ids", H5T_STD_I32LE, space, H5P_DEFAULT, creation, H5P_DEFAULT);
    H5Dclose(dataset);
    H5Pclose(creation);
    H5Sclose(space);
    H5Fclose(file);
    refuse(path.path, NULL, "input_ids: 0 stored bytes cannot hold 100000000 rows", NULL);
}

static void test_group_in_place_of_dataset(void **state)
{
    (void)state;
    raw_shard raw = raw_valid();
    raw.sets[SEGMENTS].absent = true;
    file_name path = raw_write(&raw, "group.hdf5");
    hid_t file = H5Fopen(path.path, H5F_ACC_RDWR, H5P_DEFAULT);
    H5Gclose(H5Gcreate2(file, "segment_ids", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
    H5Fclose(file);
    refuse(path.path, &raw_expectations, "segment_ids", "HDF5");
}

static void test_not_a_shard(void **state)
{
    (void)state;
    file_name path = in_folder("missing.hdf5");
    refuse(path.path, NULL, "No such file or directory", NULL);
    refuse(test_folder, NULL, "is not a regular file", NULL);
    path = in_folder("text.hdf5");
    FILE *text = fopen(path.path, "w");
    fputs("this is no shard\n", text);
    fclose(text);
    refuse(path.path, NULL, "cannot be read as an HDF5 file", NULL);
    path = in_folder("nothing.hdf5");
    fclose(fopen(path.path, "w"));
    refuse(path.path, NULL, "cannot be read as an HDF5 file", NULL);
    path = in_folder("pipe.hdf5");
    assert_int_equal(mkfifo(path.path, 0600), 0);
    refuse(path.path, NULL, "is not a regular file", NULL);
}

/* What stands in place of SEGMENTS in a file that is well otherwise. */
static hid_t without_segments(const char *name, file_name *path)
{
    raw_shard raw = raw_valid();
    raw.sets[SEGMENTS].absent = true;
    *path = raw_write(&raw, name);
    return H5Fopen(path->path, H5F_ACC_RDWR, H5P_DEFAULT);
}

/* A shard that reaches for other files could stand for anything, or wait for a pipe for ever. */
static void test_data_in_another_file(void **state)
{
    (void)state;
    raw_shard raw = raw_valid();
    file_name other = raw_write(&raw, "other.hdf5"), pipe = in_folder("pipe"), path;
    assert_int_equal(mkfifo(pipe.path, 0600), 0);
    const char *const targets[] = {other.path, pipe.path, "missing.hdf5"};
    for (int i = 0; i < 3; i++) {
        hid_t file = without_segments("linked.hdf5", &path);
        H5Lcreate_external(targets[i], "segment_ids", file, "segment_ids", H5P_DEFAULT,
                           H5P_DEFAULT);
        H5Fclose(file);
        refuse(path.path, &raw_expectations, "segment_ids: found a link to another file", NULL);
    }
    hid_t file = without_segments("stored.hdf5", &path);
    hid_t creation = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_external(creation, pipe.path, 0, H5F_UNLIMITED);
    hid_t space = H5Screate_simple(2, raw.sets[SEGMENTS].size, NULL);
    H5Dclose(
        H5Dcreate2(file, "segment_ids", H5T_STD_I8LE, space, H5P_DEFAULT, creation, H5P_DEFAULT));
    H5Sclose(space);
    H5Pclose(creation);
    H5Fclose(file);
    refuse(path.path, &raw_expectations, "segment_ids: found data in another file", NULL);
}

static size_t pass_through(unsigned flags, size_t value_count, const unsigned values[],
                           size_t bytes, size_t *buffer_size, void **buffer)
{
    (void)flags, (void)value_count, (void)values, (void)buffer_size, (void)buffer;
    return bytes;
}

static void test_unknown_compression(void **state)
{
    (void)state;
    static const H5Z_class2_t filter = {.version = H5Z_CLASS_T_VERS,
                                        .id = 300,
                                        .encoder_present = 1,
                                        .decoder_present = 1,
                                        .name = "squeeze",
                                        .filter = pass_through};
    file_name path;
    raw_shard raw = raw_valid();
    assert_true(H5Zregister(&filter) >= 0);
    hid_t file = without_segments("squeezed.hdf5", &path);
    hid_t creation = H5Pcreate(H5P_DATASET_CREATE);
    const hsize_t chunk[] = {1, RAW_LENGTH};
    H5Pset_chunk(creation, 2, chunk);
    H5Pset_filter(creation, 300, H5Z_FLAG_OPTIONAL, 0, NULL);
    hid_t space = H5Screate_simple(2, raw.sets[SEGMENTS].size, NULL);
    hid_t dataset =
        H5Dcreate2(file, "segment_ids", H5T_STD_I8LE, space, H5P_DEFAULT, creation, H5P_DEFAULT);
    H5Dwrite(dataset, H5T_NATIVE_INT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, raw.sets[SEGMENTS].values);
    H5Dclose(dataset);
    H5Sclose(space);
    H5Pclose(creation);
    H5Fclose(file);
    tt_error error;
    tt_shard_info info;
    assert_int_equal(tt_shard_inspect(path.path, &info, &error), TT_OK);
    H5Zunregister(300);
    refuse(path.path, &raw_expectations, "segment_ids", "filter 300 (squeeze)");
}

static void test_truncated_file(void **state)
{
    (void)state;
    tt_shard_info info = sample_info(TT_MASKING_STATIC, 20);
    for (int part = 0; part < 16; part++) {
        file_name path = write_samples("truncated.hdf5", &info, 0, 600);
        struct stat status;
        assert_int_equal(stat(path.path, &status), 0);
        assert_int_equal(truncate(path.path, status.st_size * part / 16), 0);
        refuse(path.path, NULL, "cannot be read as an HDF5 file: HDF5: ", NULL);
        tt_error error;
        tt_shard_info found;
        tt_shard_inspect(path.path, &found, &error);
        assert_null(strstr(error.message, "HDF5_USE_FILE_LOCKING"));
    }
}

/* --- attributes --- */

/* Gives the file's attribute another value, or with a NULL value takes it away. */
static void change_attribute(const char *path, const char *name, hid_t type, const void *value)
{
    hid_t file = H5Fopen(path, H5F_ACC_RDWR, H5P_DEFAULT);
    assert_true(file >= 0);
    assert_true(H5Adelete(file, name) >= 0);
    if (value != NULL) {
        hid_t space = H5Screate(H5S_SCALAR);
        hid_t attribute = H5Acreate2(file, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
        assert_true(H5Awrite(attribute, type, value) >= 0);
        H5Aclose(attribute);
        H5Sclose(space);
    }
    assert_true(H5Fclose(file) >= 0);
}

typedef struct {
    tt_masking_kind masking;
    const char *name;
    int64_t value;
    const char *message;
} wrong_attribute;

static void test_wrong_attributes(void **state)
{
    (void)state;
    static const wrong_attribute wrong[] = {
        {TT_MASKING_STATIC, "ttrain_shard_version", 2, "found 2, expected 1"},
        {TT_MASKING_STATIC, "rows", 7, "input_ids: found 6 rows, expected 7"},
        {TT_MASKING_STATIC, "rows", 0, "the shard is empty"},
        {TT_MASKING_STATIC, "sequence_length", 19, "found rows of 20 values, expected 19"},
        {TT_MASKING_STATIC, "sequence_length", 0, "found 0, expected at least 1"},
        {TT_MASKING_STATIC, "max_predictions", 5, "found rows of 4 values, expected 5"},
        {TT_MASKING_STATIC, "max_predictions", 0, "found 0, expected 1 to the sequence length"},
        {TT_MASKING_DYNAMIC, "max_predictions", 4, "found 4, expected 0 where masks are drawn"},
        {TT_MASKING_STATIC, "vocabulary_size", 0, "found 0, expected at least 1"},
        {TT_MASKING_STATIC, "vocabulary_size", 205, "found 205, expected 0 to 204"},
        {TT_MASKING_STATIC, "pad_id", -1, "attribute pad_id: found -1, expected 0 to 999"},
        {TT_MASKING_STATIC, "cls_id", 1000, "attribute cls_id: found 1000, expected -1 to 999"},
        {TT_MASKING_DYNAMIC, "mask_id", -1, "attribute mask_id: found -1, expected 0 to 999"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        tt_shard_info info = sample_info(wrong[i].masking, 20);
        file_name path = write_samples("attributes.hdf5", &info, 0, 6);
        change_attribute(path.path, wrong[i].name, H5T_NATIVE_INT64, &wrong[i].value);
        refuse(path.path, NULL, wrong[i].message, NULL);
    }
}

static void test_missing_attributes(void **state)
{
    (void)state;
    static const char *const names[] = {"masking",
                                        "rows",
                                        "sequence_length",
                                        "max_predictions",
                                        "vocabulary_size",
                                        "pad_id",
                                        "cls_id",
                                        "sep_id",
                                        "mask_id",
                                        "unknown_id",
                                        "vocabulary_hash",
                                        "tokenizer_hash",
                                        "seed",
                                        "source"};
    tt_shard_info info = sample_info(TT_MASKING_STATIC, 20);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        file_name path = write_samples("attributes.hdf5", &info, 0, 6);
        change_attribute(path.path, names[i], 0, NULL);
        refuse(path.path, NULL, names[i], "expected it to be there");
        path = write_samples("attributes.hdf5", &info, 0, 6);
        double number = 1;
        change_attribute(path.path, names[i], H5T_NATIVE_DOUBLE, &number);
        refuse(path.path, NULL, names[i], "expected ");
    }
}

static void test_masking_attribute_that_contradicts(void **state)
{
    (void)state;
    tt_shard_info info = sample_info(TT_MASKING_DYNAMIC, 20);
    file_name path = write_samples("contradiction.hdf5", &info, 0, 6);
    hid_t text = H5Tcopy(H5T_C_S1);
    H5Tset_size(text, 10);
    change_attribute(path.path, "masking", text, "static\0\0\0\0");
    int32_t room = 4;
    change_attribute(path.path, "max_predictions", H5T_NATIVE_INT32, &room);
    refuse(path.path, NULL, "special_tokens_mask: found a dataset of the other kind of masking",
           NULL);
    change_attribute(path.path, "masking", text, "sometimes");
    refuse(path.path, NULL, "attribute masking: expected \"static\" or \"dynamic\"", NULL);
    info = sample_info(TT_MASKING_STATIC, 20);
    path = write_samples("contradiction.hdf5", &info, 0, 6);
    change_attribute(path.path, "masking", text, "dynamic\0\0\0");
    room = 0;
    change_attribute(path.path, "max_predictions", H5T_NATIVE_INT32, &room);
    refuse(path.path, NULL, "masked_lm_positions: found a dataset of the other kind of masking",
           NULL);
    H5Tclose(text);
}

static void test_expectations(void **state)
{
    (void)state;
    tt_shard_info info = sample_info(TT_MASKING_STATIC, 20);
    file_name path = write_samples("expected.hdf5", &info, 0, 6);
    tt_shard_expectations fits = {20, 1000, 4, info.tokenizer_hash};
    tt_shard *shard = read_shard(path.path, &fits);
    tt_shard_free(&shard);
    /* A model may have room for more: a vocabulary padded to a round number, more predictions. */
    tt_shard_expectations roomy = {20, 1024, 8, 0};
    shard = read_shard(path.path, &roomy);
    tt_shard_free(&shard);
    tt_shard_expectations other = fits;
    other.tokenizer_hash = 0x1234;
    refuse(path.path, &other,
           "shard made with another tokenizer: found hash f123456789abcdef, "
           "expected 0000000000001234",
           NULL);
    other = fits;
    other.vocabulary_size = 999;
    refuse(path.path, &other, "made for a vocabulary of 1000 ids, expected at most 999", NULL);
    other = fits;
    other.max_predictions = 3;
    refuse(path.path, &other, "room for 4 masked positions a row, expected at most 3", NULL);
    other = fits;
    other.sequence_length = 128;
    refuse(path.path, &other, "rows of 20 tokens, expected sequence length 128", NULL);
}

/* --- the writer --- */

static void refuse_row(const tt_shard_row *row, tt_masking_kind masking, const char *fragment)
{
    tt_shard_info info = sample_info(masking, 20);
    file_name path = in_folder("refused.hdf5");
    tt_shard_writer *writer;
    tt_error error = {.message = ""};
    assert_int_equal(tt_shard_writer_create(path.path, &info, &writer, &error), TT_OK);
    assert_int_equal(tt_shard_writer_append(writer, row, &error), TT_INVALID_INPUT);
    assert_message(&error, path.path);
    assert_message(&error, "row 0: ");
    assert_message(&error, fragment);
    int before = count_files();
    tt_shard_writer_abandon(&writer);
    assert_null(writer);
    assert_int_equal(count_files(), before - 1);
}

static void test_writer_refuses_rows(void **state)
{
    (void)state;
    sample_row sample;
    make_sample_row(&sample, 3, 20);
    tt_shard_row row = sample.row;
    row.length = 21;
    refuse_row(&row, TT_MASKING_STATIC, "number of tokens: found 21, expected 1 to 20");
    row.length = 0;
    refuse_row(&row, TT_MASKING_STATIC, "number of tokens: found 0, expected 1 to 20");
    row = sample.row;
    row.next_sentence_label = 2;
    refuse_row(&row, TT_MASKING_STATIC, "next_sentence_labels: found 2, expected 0 to 1");
    row = sample.row;
    row.masked_count = 5;
    refuse_row(&row, TT_MASKING_STATIC, "number of masked positions: found 5, expected 0 to 4");
    row = sample.row;
    sample.ids[5] = 1000;
    refuse_row(&row, TT_MASKING_STATIC, "input_ids: found 1000, expected 0 to 999");
    make_sample_row(&sample, 3, 20);
    sample.segments[4] = 2;
    refuse_row(&row, TT_MASKING_STATIC, "segment_ids: found 2, expected 0 to 1");
    make_sample_row(&sample, 3, 20);
    sample.flags[4] = 4;
    refuse_row(&row, TT_MASKING_DYNAMIC, "special_tokens_mask: found 4, expected 0 to 3");
    make_sample_row(&sample, 3, 20);
    sample.positions[0] = 0;
    refuse_row(&row, TT_MASKING_STATIC, "masked_lm_positions: found 0, expected 1 to 16");
    make_sample_row(&sample, 3, 20);
    sample.positions[2] = 4;
    refuse_row(&row, TT_MASKING_STATIC, "masked_lm_positions: found 4, expected 5 to 16");
    make_sample_row(&sample, 3, 20);
    sample.positions[3] = 17;
    refuse_row(&row, TT_MASKING_STATIC, "masked_lm_positions: found 17, expected 6 to 16");
    make_sample_row(&sample, 3, 20);
    sample.masked_ids[0] = -1;
    refuse_row(&row, TT_MASKING_STATIC, "masked_lm_ids: found -1, expected 0 to 999");
}

static void test_writer_refuses_attributes(void **state)
{
    (void)state;
    file_name path = in_folder("refused.hdf5");
    tt_shard_writer *writer;
    tt_error error = {.message = ""};
    tt_shard_info info = sample_info(TT_MASKING_STATIC, 20);
    info.max_predictions = 21;
    assert_int_equal(tt_shard_writer_create(path.path, &info, &writer, &error), TT_INVALID_INPUT);
    assert_null(writer);
    assert_message(&error, "max_predictions: found 21");
    info = sample_info(TT_MASKING_DYNAMIC, 20);
    info.special.mask = -1;
    assert_int_equal(tt_shard_writer_create(path.path, &info, &writer, &error), TT_INVALID_INPUT);
    assert_message(&error, "mask_id");
    info = sample_info(TT_MASKING_STATIC, 20);
    path = in_folder("no_such_folder/shard.hdf5");
    assert_int_equal(tt_shard_writer_create(path.path, &info, &writer, &error), TT_IO_FAILED);
    assert_message(&error, "No such file or directory");
}

/* Until a shard is closed its name does not exist, and a shard without rows never gets one. */
static void test_writer_leaves_nothing_unfinished(void **state)
{
    (void)state;
    tt_shard_info info = sample_info(TT_MASKING_STATIC, 20);
    int before = count_files();
    file_name path = in_folder("unfinished.hdf5");
    tt_shard_writer *writer;
    tt_error error = {.message = ""};
    assert_int_equal(tt_shard_writer_create(path.path, &info, &writer, &error), TT_OK);
    assert_int_not_equal(access(path.path, F_OK), 0);
    assert_int_equal(tt_shard_writer_close(&writer, &error), TT_INVALID_INPUT);
    assert_null(writer);
    assert_message(&error, "no rows to write, expected at least one");
    assert_int_equal(count_files(), before);
    /* What an earlier run left under the temporary name is in nobody's way. */
    file_name left = in_folder("unfinished.hdf5.tmp");
    FILE *file = fopen(left.path, "w");
    fputs("half a shard", file);
    fclose(file);
    path = write_samples("unfinished.hdf5", &info, 0, 3);
    assert_int_equal(count_files(), before + 1);
    tt_shard *shard = read_shard(path.path, NULL);
    tt_shard_free(&shard);
    tt_shard_writer_abandon(&writer);
}

/* Runs `body` in a child, so that limits and the environment stay there; its status is the test's.
 */
static void in_child(int (*body)(void))
{
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        exit(body());
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* A file size limit stands for a full disk. */
static int write_on_full_disk(void)
{
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit limit = {20000, 20000};
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) {
        return 1;
    }
    tt_shard_info info = sample_info(TT_MASKING_STATIC, 64);
    tt_shard_writer *writer;
    tt_error error = {.message = ""};
    if (tt_shard_writer_create(in_folder("full.hdf5").path, &info, &writer, &error) != TT_OK) {
        return 2;
    }
    tt_status status = TT_OK;
    sample_row sample;
    for (int64_t i = 0; i < 5000 && status == TT_OK; i++) {
        make_sample_row(&sample, i, 64);
        status = tt_shard_writer_append(writer, &sample.row, &error);
    }
    if (status == TT_OK) {
        status = tt_shard_writer_close(&writer, &error);
    } else {
        tt_shard_writer_abandon(&writer);
    }
    return status == TT_IO_FAILED && strstr(error.message, "full.hdf5.tmp: cannot ") != NULL &&
                   strstr(error.message, strerror(EFBIG)) != NULL
               ? 0
               : 3;
}

static void test_full_disk(void **state)
{
    (void)state;
    tt_shard_info info = sample_info(TT_MASKING_STATIC, 20);
    write_samples("full.hdf5", &info, 0, 3);
    int before = count_files();
    in_child(write_on_full_disk);
    assert_int_equal(count_files(), before);
    /* The shard that stood there before still does. */
    tt_shard *shard = read_shard(in_folder("full.hdf5").path, NULL);
    assert_int_equal(shard->info.rows, 3);
    tt_shard_free(&shard);
}

/* --- manners --- */

static file_name locked_file;

static int write_locked_file(void)
{
    tt_shard_info info = sample_info(TT_MASKING_STATIC, 20);
    write_samples("locked.hdf5", &info, 0, 3);
    return 0;
}

/* 1 when the locked file could be read, 0 when the error says how to do without locks. */
static int read_locked_file(void)
{
    tt_shard *shard;
    tt_error error = {.message = ""};
    tt_status status = tt_shard_read(locked_file.path, NULL, &shard, &error);
    tt_shard_free(&shard);
    bool has_hint = strstr(error.message, "unable to lock file: ") != NULL &&
                    strstr(error.message, "HDF5_USE_FILE_LOCKING=FALSE") != NULL;
    return status == TT_OK ? 1 : (has_hint ? 0 : 2);
}

static int read_without_lock(void)
{
    unsetenv("HDF5_USE_FILE_LOCKING");
    return read_locked_file() == 1 ? 0 : 1;
}

static int read_with_lock(void)
{
    setenv("HDF5_USE_FILE_LOCKING", "TRUE", 1);
    return read_locked_file();
}

/* Runs first: HDF5 looks at the variable once, when it starts. Readers take no lock unless the user
 * asks for it, and then the message says how to do without. */
static void test_file_locks(void **state)
{
    (void)state;
    locked_file = in_folder("locked.hdf5");
    in_child(write_locked_file);
    int descriptor = open(locked_file.path, O_RDWR);
    assert_true(descriptor >= 0);
    assert_int_equal(flock(descriptor, LOCK_EX), 0);
    in_child(read_without_lock);
    in_child(read_with_lock);
    close(descriptor);
}

/* HDF5 prints an error stack of its own unless it is told not to. */
static void test_nothing_is_printed(void **state)
{
    (void)state;
    file_name printed = in_folder("printed.txt");
    int before = dup(STDERR_FILENO);
    fflush(stderr);
    assert_non_null(freopen(printed.path, "w", stderr));
    test_truncated_file(NULL);
    test_missing_datasets(NULL);
    test_group_in_place_of_dataset(NULL);
    fflush(stderr);
    struct stat status;
    assert_int_equal(stat(printed.path, &status), 0);
    dup2(before, STDERR_FILENO);
    close(before);
    assert_int_equal(status.st_size, 0);
    /* The program's own setting is back afterwards. */
    H5E_auto2_t printer;
    void *data;
    H5Eget_auto2(H5E_DEFAULT, &printer, &data);
    assert_non_null(printer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_file_locks),
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_static_shard_is_nvidia_layout),
        cmocka_unit_test(test_nvidia_128),
        cmocka_unit_test(test_nvidia_512),
        cmocka_unit_test(test_any_integer_type),
        cmocka_unit_test(test_values_out_of_range),
        cmocka_unit_test(test_row_without_tokens),
        cmocka_unit_test(test_missing_datasets),
        cmocka_unit_test(test_wrong_types_and_ranks),
        cmocka_unit_test(test_shapes_that_disagree),
        cmocka_unit_test(test_empty_shard),
        cmocka_unit_test(test_shape_without_data),
        cmocka_unit_test(test_group_in_place_of_dataset),
        cmocka_unit_test(test_data_in_another_file),
        cmocka_unit_test(test_unknown_compression),
        cmocka_unit_test(test_not_a_shard),
        cmocka_unit_test(test_truncated_file),
        cmocka_unit_test(test_wrong_attributes),
        cmocka_unit_test(test_missing_attributes),
        cmocka_unit_test(test_masking_attribute_that_contradicts),
        cmocka_unit_test(test_expectations),
        cmocka_unit_test(test_writer_refuses_rows),
        cmocka_unit_test(test_writer_refuses_attributes),
        cmocka_unit_test(test_writer_leaves_nothing_unfinished),
        cmocka_unit_test(test_full_disk),
        cmocka_unit_test(test_nothing_is_printed),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
