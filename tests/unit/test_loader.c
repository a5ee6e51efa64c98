#include "support/shard_files.h"

#include "data/loader.h"
#include "data/sample_order.h"

enum { LENGTH = 20, SHARDS = 5 };

/* Five shards of uneven size; row numbers run on from one to the next. */
static const int64_t shard_rows[SHARDS] = {7, 1, 13, 4, 8};
enum { ROWS = 33 };
static file_name shards[2][SHARDS]; /* by masking kind */

static void write_shards(tt_masking_kind masking)
{
    tt_shard_info info = sample_info(masking, LENGTH);
    int64_t first = 0;
    for (int i = 0; i < SHARDS; i++) {
        char name[64];
        snprintf(name, sizeof name, "%s_%d.hdf5",
                 masking == TT_MASKING_STATIC ? "static" : "dynamic", i);
        shards[masking][i] = write_samples(name, &info, first, shard_rows[i]);
        first += shard_rows[i];
    }
}

static int set_up(void **state)
{
    if (make_folder(state) != 0) {
        return 1;
    }
    write_shards(TT_MASKING_STATIC);
    write_shards(TT_MASKING_DYNAMIC);
    return 0;
}

static tt_loader_options default_options(tt_masking_kind masking)
{
    static const char *paths[2][SHARDS];
    for (int i = 0; i < SHARDS; i++) {
        paths[masking][i] = shards[masking][i].path;
    }
    return (tt_loader_options){.paths = paths[masking],
                               .path_count = SHARDS,
                               .sequence_length = LENGTH,
                               .vocabulary_size = 1000,
                               .max_predictions = 4,
                               .masking = {.probability = 0.15},
                               .seed = 7,
                               .global_batch = 8,
                               .world_size = 1,
                               .shuffle = true};
}

static tt_loader *open_loader(const tt_loader_options *options)
{
    tt_loader *loader;
    tt_error error = {.message = ""};
    if (tt_loader_open(options, &loader, &error) != TT_OK) {
        fail_msg("%s", error.message);
    }
    return loader;
}

static tt_batch *next(tt_loader *loader)
{
    tt_batch *batch;
    tt_error error = {.message = ""};
    if (tt_loader_next(loader, &batch, &error) != TT_OK) {
        fail_msg("%s", error.message);
    }
    return batch;
}

/* Everything that a stream of samples holds, [samples, ...]. */
enum { MAXIMUM_SAMPLES = 160 };

typedef struct {
    int64_t count;
    int32_t ids[MAXIMUM_SAMPLES][LENGTH], segments[MAXIMUM_SAMPLES][LENGTH];
    uint8_t mask[MAXIMUM_SAMPLES][LENGTH];
    int32_t positions[MAXIMUM_SAMPLES][4], labels[MAXIMUM_SAMPLES][4];
    int32_t next_sentence[MAXIMUM_SAMPLES];
} stream;

/* Puts a batch where its samples belong in the stream that starts with sample `first`. */
static void keep_batch(stream *stream, const tt_batch *batch, int64_t first)
{
    int64_t place = batch->first_sample - first, masked = 0;
    assert_in_range(place + batch->rows, 1, MAXIMUM_SAMPLES);
    for (int64_t row = 0; row < batch->rows; row++) {
        for (int i = 0; i < LENGTH; i++) {
            stream->ids[place + row][i] = batch->input_ids[row * LENGTH + i];
            stream->segments[place + row][i] = batch->segment_ids[row * LENGTH + i];
            stream->mask[place + row][i] = batch->attention_mask[row * LENGTH + i];
        }
        for (int i = 0; i < 4; i++) {
            stream->positions[place + row][i] = batch->masked_positions[row * 4 + i];
            stream->labels[place + row][i] = batch->masked_labels[row * 4 + i];
            masked += batch->masked_labels[row * 4 + i] >= 0;
        }
        stream->next_sentence[place + row] = batch->next_sentence_labels[row];
    }
    assert_int_equal(batch->masked_count, masked);
    stream->count += batch->rows;
}

/* The samples of steps first_step ... first_step + steps - 1, from as many loaders as ranks. */
static void read_stream(stream *stream, tt_loader_options options, int world_size,
                        int64_t first_step, int64_t steps)
{
    memset(stream, 0, sizeof *stream);
    options.world_size = world_size;
    options.first_step = first_step;
    for (int rank = 0; rank < world_size; rank++) {
        options.rank = rank;
        tt_loader *loader = open_loader(&options);
        for (int64_t step = first_step; step < first_step + steps; step++) {
            tt_batch *batch = next(loader);
            assert_non_null(batch);
            assert_int_equal(batch->rows, options.global_batch / world_size);
            assert_int_equal(batch->sequence_length, LENGTH);
            assert_int_equal(batch->max_predictions, 4);
            assert_int_equal(batch->first_sample, step * options.global_batch + rank * batch->rows);
            assert_true(batch->wait_seconds >= 0);
            keep_batch(stream, batch, first_step * options.global_batch);
        }
        tt_loader_close(&loader);
        assert_null(loader);
    }
}

/* The number that make_sample_row wrote into a row. */
static int64_t row_number(const stream *stream, int64_t sample)
{
    return (stream->ids[sample][1] - 100) * 900 + stream->ids[sample][2] - 100;
}

static stream first_stream, second_stream;

static void test_epochs_hold_every_row_once(void **state)
{
    (void)state;
    for (int masking = 0; masking < 2; masking++) {
        read_stream(&first_stream, default_options(masking), 1, 0, 17);
        for (int epoch = 0; epoch < 4; epoch++) {
            bool seen[ROWS] = {false};
            for (int i = 0; i < ROWS; i++) {
                int64_t row = row_number(&first_stream, epoch * ROWS + i);
                assert_in_range(row, 0, ROWS - 1);
                assert_false(seen[row]);
                seen[row] = true;
            }
        }
    }
}

/* Another order in each epoch and for each seed, and rows of a shard stay together. */
static void test_orders_differ(void **state)
{
    (void)state;
    tt_loader_options options = default_options(TT_MASKING_STATIC);
    read_stream(&first_stream, options, 1, 0, 17);
    options.seed = 8;
    read_stream(&second_stream, options, 1, 0, 17);
    int same_epoch = 0, same_seed = 0, same_file = 0, changes = 0;
    for (int i = 0; i < ROWS; i++) {
        int64_t row = row_number(&first_stream, i);
        same_epoch += row == row_number(&first_stream, ROWS + i);
        same_seed += row == row_number(&second_stream, i);
        same_file += row == i;
        if (i > 0) {
            static const int shard_of[ROWS] = {0, 0, 0, 0, 0, 0, 0, 1, 2, 2, 2, 2, 2, 2, 2, 2, 2,
                                               2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 4, 4, 4, 4};
            changes += shard_of[row] != shard_of[row_number(&first_stream, i - 1)];
        }
    }
    assert_true(same_epoch < ROWS / 2 && same_seed < ROWS / 2 && same_file < ROWS / 2);
    assert_int_equal(changes, SHARDS - 1);
}

static void test_any_world_size_sees_the_same_stream(void **state)
{
    (void)state;
    for (int masking = 0; masking < 2; masking++) {
        tt_loader_options options = default_options(masking);
        read_stream(&first_stream, options, 1, 0, 17);
        static const int world_sizes[] = {2, 4, 8};
        for (int i = 0; i < 3; i++) {
            read_stream(&second_stream, options, world_sizes[i], 0, 17);
            assert_memory_equal(&first_stream, &second_stream, sizeof first_stream);
        }
    }
}

static void test_seeking_equals_reading_through(void **state)
{
    (void)state;
    for (int masking = 0; masking < 2; masking++) {
        tt_loader_options options = default_options(masking);
        read_stream(&first_stream, options, 1, 0, 17);
        for (int64_t step = 1; step < 17; step++) {
            read_stream(&second_stream, options, 2, step, 17 - step);
            assert_int_equal(second_stream.count, (17 - step) * 8);
            for (int64_t i = 0; i < second_stream.count; i++) {
                int64_t from = step * 8 + i;
                assert_memory_equal(first_stream.ids[from], second_stream.ids[i],
                                    sizeof first_stream.ids[0]);
                assert_memory_equal(first_stream.positions[from], second_stream.positions[i],
                                    sizeof first_stream.positions[0]);
                assert_memory_equal(first_stream.labels[from], second_stream.labels[i],
                                    sizeof first_stream.labels[0]);
            }
        }
    }
}

/* Seeking far away costs nothing: step 2^30 of a run is there at once. */
static void test_far_step(void **state)
{
    (void)state;
    tt_loader_options options = default_options(TT_MASKING_STATIC);
    int64_t step = (int64_t)1 << 30;
    read_stream(&first_stream, options, 2, step, 17);
    read_stream(&second_stream, options, 1, step + 16, 1);
    assert_memory_equal(first_stream.ids[128], second_stream.ids[0], 8 * sizeof(int32_t[LENGTH]));
}

static void test_batch_larger_than_an_epoch(void **state)
{
    (void)state;
    tt_loader_options options = default_options(TT_MASKING_STATIC);
    read_stream(&first_stream, options, 1, 0, 10);
    options.global_batch = 80;
    read_stream(&second_stream, options, 1, 0, 1);
    assert_memory_equal(first_stream.ids, second_stream.ids, 80 * sizeof first_stream.ids[0]);
}

/* Whether all shards stay in memory or each is read again in every epoch, the samples are those of
 * the files. */
static void test_rows_are_those_of_the_files(void **state)
{
    (void)state;
    tt_loader_options options = default_options(TT_MASKING_STATIC);
    for (int count = 1; count <= SHARDS; count++) {
        options.path_count = count;
        read_stream(&first_stream, options, 1, 0, 17);
        sample_row expected;
        for (int64_t sample = 0; sample < first_stream.count; sample++) {
            make_sample_row(&expected, row_number(&first_stream, sample), LENGTH);
            for (int i = 0; i < LENGTH; i++) {
                bool real = i < expected.row.length;
                assert_int_equal(first_stream.ids[sample][i], real ? expected.ids[i] : 0);
                assert_int_equal(first_stream.mask[sample][i], real);
                assert_int_equal(first_stream.segments[sample][i], real ? expected.segments[i] : 0);
            }
            for (int i = 0; i < 4; i++) {
                bool real = i < expected.row.masked_count;
                assert_int_equal(first_stream.positions[sample][i],
                                 real ? expected.positions[i] : -1);
                assert_int_equal(first_stream.labels[sample][i],
                                 real ? expected.masked_ids[i] : -1);
            }
            assert_int_equal(first_stream.next_sentence[sample], expected.row.next_sentence_label);
        }
    }
}

static void test_dynamic_masks(void **state)
{
    (void)state;
    tt_loader_options options = default_options(TT_MASKING_DYNAMIC);
    options.masking.whole_word = true;
    read_stream(&first_stream, options, 1, 0, 17);
    int64_t masked = 0, differing = 0;
    int32_t first_mask[ROWS];
    for (int64_t sample = 0; sample < first_stream.count; sample++) {
        sample_row expected;
        int64_t row = row_number(&first_stream, sample);
        make_sample_row(&expected, row, LENGTH);
        int count = 0;
        for (; count < 4 && first_stream.labels[sample][count] >= 0; count++) {
            int position = first_stream.positions[sample][count];
            assert_in_range(position, 3, expected.row.length - 2);
            assert_int_equal(first_stream.labels[sample][count], expected.ids[position]);
        }
        assert_in_range(count, 1, 3);
        for (int i = count; i < 4; i++) {
            assert_int_equal(first_stream.positions[sample][i], -1);
            assert_int_equal(first_stream.labels[sample][i], -1);
        }
        masked += count;
        if (sample < ROWS) {
            first_mask[row] = first_stream.positions[sample][0];
        } else {
            differing += first_mask[row] != first_stream.positions[sample][0];
        }
    }
    assert_true(masked > first_stream.count * 2);
    /* Later epochs draw other masks. */
    assert_true(differing > 0);
    options.seed++;
    options.shuffle = false;
    read_stream(&second_stream, options, 1, 0, 2);
    options.seed--;
    read_stream(&first_stream, options, 1, 0, 2);
    assert_memory_not_equal(first_stream.positions, second_stream.positions,
                            16 * sizeof first_stream.positions[0]);
}

/* --- validation --- */

static void test_validation_order_and_fillers(void **state)
{
    (void)state;
    for (int masking = 0; masking < 2; masking++) {
        tt_loader_options options = default_options(masking);
        options.shuffle = false;
        for (int world_size = 1; world_size <= 4; world_size *= 2) {
            /* Five steps for 33 rows leave 7 rows to fill. */
            read_stream(&first_stream, options, world_size, 0, 5);
            for (int i = 0; i < ROWS; i++) {
                assert_int_equal(row_number(&first_stream, i), i);
                assert_true(first_stream.next_sentence[i] >= 0);
            }
            for (int row = ROWS; row < 40; row++) {
                assert_int_equal(first_stream.next_sentence[row], -1);
                for (int i = 0; i < LENGTH; i++) {
                    assert_int_equal(first_stream.ids[row][i], 0);
                    assert_int_equal(first_stream.segments[row][i], 0);
                    assert_int_equal(first_stream.mask[row][i], i == 0);
                }
                for (int i = 0; i < 4; i++) {
                    assert_int_equal(first_stream.positions[row][i], -1);
                    assert_int_equal(first_stream.labels[row][i], -1);
                }
            }
        }
    }
}

static int64_t count_steps(const tt_loader_options *options)
{
    tt_loader *loader = open_loader(options);
    int64_t steps = 0;
    while (next(loader) != NULL) {
        steps++;
    }
    assert_null(next(loader));
    tt_loader_close(&loader);
    return steps;
}

static void test_stream_ends(void **state)
{
    (void)state;
    tt_loader_options options = default_options(TT_MASKING_STATIC);
    options.last_step = 12;
    assert_int_equal(count_steps(&options), 12);
    options.first_step = 12;
    assert_int_equal(count_steps(&options), 0);
    options.first_step = 13;
    assert_int_equal(count_steps(&options), 0);
    options = default_options(TT_MASKING_STATIC);
    options.shuffle = false;
    assert_int_equal(count_steps(&options), 5);
    options.last_step = 3;
    assert_int_equal(count_steps(&options), 3);
    options.last_step = 9;
    assert_int_equal(count_steps(&options), 9);
}

/* Some ranks have fillers only: they must not wait for rows that never come. */
static void test_rank_with_fillers_only(void **state)
{
    (void)state;
    tt_loader_options options = default_options(TT_MASKING_STATIC);
    options.shuffle = false;
    options.path_count = 2; /* 8 rows */
    options.global_batch = 16;
    options.world_size = 2;
    options.rank = 1;
    tt_loader *loader = open_loader(&options);
    tt_batch *batch = next(loader);
    assert_int_equal(batch->masked_count, 0);
    assert_null(next(loader));
    tt_loader_close(&loader);
}

/* --- NVIDIA's files --- */

static void check_nvidia_file(int length, int64_t rows, int room)
{
    file_name file = nvidia_shard(length);
    if (file.path[0] == '\0') {
        skip();
    }
    const char *paths[] = {file.path};
    tt_loader_options options = {.paths = paths,
                                 .path_count = 1,
                                 .sequence_length = length,
                                 .vocabulary_size = 30522,
                                 .max_predictions = room,
                                 .tokenizer_hash = 99,
                                 .global_batch = 32,
                                 .world_size = 1};
    tt_loader *loader = open_loader(&options);
    assert_int_equal(tt_loader_rows(loader), rows);
    int64_t seen = 0;
    for (tt_batch *batch = next(loader); batch != NULL; batch = next(loader)) {
        for (int64_t row = 0; row < batch->rows; row++) {
            seen += batch->next_sentence_labels[row] >= 0;
        }
    }
    assert_int_equal(seen, rows);
    tt_loader_close(&loader);
}

static void test_nvidia_files(void **state)
{
    (void)state;
    check_nvidia_file(128, 1072, 20);
    check_nvidia_file(512, 289, 80);
}

/* --- refusals --- */

static void refuse(const tt_loader_options *options, const char *fragment, const char *second)
{
    tt_loader *loader;
    tt_error error = {.message = ""};
    tt_status status = tt_loader_open(options, &loader, &error);
    assert_int_not_equal(status, TT_OK);
    assert_null(loader);
    assert_message(&error, fragment);
    if (second != NULL) {
        assert_message(&error, second);
    }
}

static void test_wrong_options(void **state)
{
    (void)state;
    const tt_loader_options good = default_options(TT_MASKING_STATIC);
    tt_loader_options options = good;
    options.path_count = 0;
    refuse(&options, "no shard given, expected at least one", NULL);
    options = good;
    options.sequence_length = 0;
    refuse(&options, "sequence length 0", NULL);
    options = good;
    options.max_predictions = LENGTH + 1;
    refuse(&options, "maximum of predictions 21, expected 1 to 20", NULL);
    options = good;
    options.world_size = 3;
    refuse(&options, "global batch 8, expected a multiple of the 3 ranks", NULL);
    options = good;
    options.rank = 1;
    refuse(&options, "rank 1, expected 0 to 0", NULL);
    options = good;
    options.global_batch = 0;
    refuse(&options, "global batch 0", NULL);
    options = good;
    options.first_step = -1;
    refuse(&options, "first step -1", NULL);
    options = good;
    options.world_size = 64;
    options.global_batch = 64;
    refuse(&options, "33 rows in 5 shards, expected at least one for each of 64 ranks",
           good.paths[0]);
    options = default_options(TT_MASKING_DYNAMIC);
    options.masking.probability = 0;
    refuse(&options, "masking: probability 0", NULL);
}

static void test_wrong_shards(void **state)
{
    (void)state;
    const tt_loader_options good = default_options(TT_MASKING_STATIC);
    tt_loader_options options = good;
    options.sequence_length = 128;
    refuse(&options, "rows of 20 tokens, expected sequence length 128", good.paths[0]);
    options = good;
    options.max_predictions = 3;
    refuse(&options, "room for 4 masked positions a row, expected at most 3", good.paths[0]);
    options = good;
    options.vocabulary_size = 500;
    refuse(&options, "made for a vocabulary of 1000 ids, expected at most 500", good.paths[0]);
    options = good;
    options.tokenizer_hash = 1;
    refuse(&options,
           "shard made with another tokenizer: found hash f123456789abcdef, expected "
           "0000000000000001",
           good.paths[0]);
    file_name missing = in_folder("missing.hdf5");
    const char *paths[] = {good.paths[0], missing.path};
    options = good;
    options.paths = paths;
    options.path_count = 2;
    refuse(&options, missing.path, "No such file or directory");
    raw_shard raw = raw_valid();
    for (int i = 0; i < RAW_DATASETS; i++) {
        raw.sets[i].size[0] = 0;
    }
    file_name empty = raw_write(&raw, "empty.hdf5");
    paths[1] = empty.path;
    refuse(&options, empty.path, "the shard is empty");
}

static void refuse_mix(const tt_shard_info *info, const char *fragment)
{
    tt_loader_options options = default_options(TT_MASKING_STATIC);
    file_name other = write_samples("other.hdf5", info, 0, 5);
    const char *paths[] = {options.paths[0], other.path};
    options.paths = paths;
    options.path_count = 2;
    refuse(&options, fragment, paths[0]);
    refuse(&options, fragment, paths[1]);
}

static void test_mixed_shards(void **state)
{
    (void)state;
    const tt_shard_info good = sample_info(TT_MASKING_STATIC, LENGTH);
    tt_shard_info info = good;
    info.sequence_length = 24;
    refuse_mix(&info, "sequence length 24, expected 20 as in ");
    info = sample_info(TT_MASKING_DYNAMIC, LENGTH);
    refuse_mix(&info, "dynamic masking, expected static as in ");
    info = good;
    info.vocabulary_size = 1001;
    refuse_mix(&info, "vocabulary size 1001, expected 1000 as in ");
    info = good;
    info.tokenizer_hash = 17;
    refuse_mix(&info, "shard made with another tokenizer");
    info = good;
    info.special.unknown = 9;
    refuse_mix(&info, "other special ids");
    tt_loader_options options = default_options(TT_MASKING_STATIC);
    raw_shard raw = raw_valid();
    file_name other = raw_write(&raw, "other.hdf5");
    const char *paths[] = {options.paths[0], other.path};
    options.paths = paths;
    options.path_count = 2;
    refuse(&options, "layout version 0, expected 1 as in ", other.path);
}

/* --- what goes wrong while training --- */

/* The first shard in order is sound, the second one has a bad row: batches of the first come, then
 * the error, again and again. */
static void test_bad_row_found_by_the_thread(void **state)
{
    (void)state;
    raw_shard raw = raw_valid();
    file_name good = raw_write(&raw, "good.hdf5");
    raw.sets[IDS].values[14] = RAW_VOCABULARY;
    file_name bad = raw_write(&raw, "bad.hdf5");
    const char *paths[] = {good.path, bad.path};
    tt_loader_options options = {.paths = paths,
                                 .path_count = 2,
                                 .sequence_length = RAW_LENGTH,
                                 .vocabulary_size = RAW_VOCABULARY,
                                 .max_predictions = RAW_ROOM,
                                 .global_batch = 1,
                                 .world_size = 1};
    tt_loader *loader = open_loader(&options);
    for (int i = 0; i < RAW_ROWS; i++) {
        assert_non_null(next(loader));
    }
    for (int i = 0; i < 2; i++) {
        tt_batch *batch;
        tt_error error = {.message = ""};
        assert_int_equal(tt_loader_next(loader, &batch, &error), TT_INVALID_INPUT);
        assert_null(batch);
        assert_message(&error, bad.path);
        assert_message(&error, "input_ids: row 1, place 2: found 50, expected 0 to 49");
    }
    tt_loader_close(&loader);
}

/* A shard that is replaced during a run would make the order another one. With more shards than
 * stay in memory it is read again. */
static void test_shard_that_changes(void **state)
{
    (void)state;
    tt_shard_info info = sample_info(TT_MASKING_STATIC, LENGTH);
    file_name files[4];
    const char *paths[4];
    for (int i = 0; i < 4; i++) {
        char name[32];
        snprintf(name, sizeof name, "changing_%d.hdf5", i);
        files[i] = write_samples(name, &info, (int64_t)i * 10, 10);
        paths[i] = files[i].path;
    }
    tt_loader_options options = default_options(TT_MASKING_STATIC);
    options.paths = paths;
    options.path_count = 4;
    tt_loader *loader = open_loader(&options);
    assert_non_null(next(loader));
    write_samples("changing_0.hdf5", &info, 0, 11);
    tt_status status = TT_OK;
    tt_error error = {.message = ""};
    for (int step = 0; step < 20 && status == TT_OK; step++) {
        tt_batch *batch;
        status = tt_loader_next(loader, &batch, &error);
    }
    assert_int_equal(status, TT_INVALID_INPUT);
    assert_message(&error, files[0].path);
    assert_message(&error, "has changed since the run started");
    tt_loader_close(&loader);
}

/* Closing at any moment neither waits for ever nor leaks (the sanitizers watch). */
static void test_closing_early(void **state)
{
    (void)state;
    for (int steps = 0; steps < 12; steps++) {
        tt_loader_options options = default_options(steps % 2);
        tt_loader *loader = open_loader(&options);
        for (int step = 0; step < steps; step++) {
            assert_non_null(next(loader));
        }
        tt_loader_close(&loader);
    }
    tt_loader *none = NULL;
    tt_loader_close(&none);
}

/* A batch stays as it is until the next one is asked for, whatever the threads do meanwhile. */
static void test_batch_is_stable(void **state)
{
    (void)state;
    tt_loader_options options = default_options(TT_MASKING_DYNAMIC);
    tt_loader *loader = open_loader(&options);
    tt_batch *held = next(loader);
    int32_t ids[8 * LENGTH];
    memcpy(ids, held->input_ids, sizeof ids);
    for (int i = 0; i < 20; i++) {
        tt_loader *other = open_loader(&options);
        next(other);
        tt_loader_close(&other);
    }
    assert_memory_equal(ids, held->input_ids, sizeof ids);
    tt_loader_close(&loader);
}

/* --- fingerprints --- */

static uint64_t fingerprint(const tt_loader_options *options)
{
    tt_loader *loader = open_loader(options);
    uint64_t result = tt_loader_fingerprint(loader);
    tt_loader_close(&loader);
    return result;
}

static void test_fingerprint(void **state)
{
    (void)state;
    tt_loader_options options = default_options(TT_MASKING_STATIC);
    uint64_t first = fingerprint(&options);
    options.world_size = 2;
    options.seed = 5;
    assert_true(fingerprint(&options) == first);
    options.path_count--;
    assert_true(fingerprint(&options) != first);
    tt_shard_info info = sample_info(TT_MASKING_STATIC, LENGTH);
    file_name file = write_samples("print.hdf5", &info, 0, 7);
    const char *paths[] = {file.path};
    options.paths = paths;
    options.path_count = 1;
    uint64_t seven = fingerprint(&options);
    write_samples("print.hdf5", &info, 0, 8);
    assert_true(fingerprint(&options) != seven);
    write_samples("print.hdf5", &info, 100, 7);
    assert_true(fingerprint(&options) == seven);
    info.seed = 1;
    write_samples("print.hdf5", &info, 0, 7);
    assert_true(fingerprint(&options) != seven);
}

/* The order is part of what a resumed run relies on: it may not change from one release to the
 * next. */
static void test_order_is_fixed_for_good(void **state)
{
    (void)state;
    static const int64_t rows[] = {6, 3, 5};
    tt_sample_order order;
    tt_error error;
    assert_int_equal(tt_sample_order_start(&order, 12345, true, 3, rows, &error), TT_OK);
    assert_int_equal(order.rows, 14);
    int64_t found[28];
    for (int64_t sample = 0; sample < 28;) {
        tt_sample_stretch stretch = tt_sample_order_find(&order, sample);
        assert_int_equal(stretch.first, sample);
        uint32_t places[6];
        tt_sample_order_rows(&order, &stretch, places);
        for (; sample < stretch.end; sample++) {
            found[sample] = stretch.shard * 10 + places[sample - stretch.first];
        }
    }
    static const int64_t expected[28] = {21, 24, 20, 23, 22, 12, 10, 11, 3,  1,  0,  4,  5,  2,
                                         2,  3,  4,  5,  1,  0,  12, 11, 10, 23, 20, 24, 22, 21};
    for (int i = 0; i < 28; i++) {
        assert_int_equal(found[i], expected[i]);
    }
    tt_sample_order_free(&order);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_epochs_hold_every_row_once),
        cmocka_unit_test(test_orders_differ),
        cmocka_unit_test(test_any_world_size_sees_the_same_stream),
        cmocka_unit_test(test_seeking_equals_reading_through),
        cmocka_unit_test(test_far_step),
        cmocka_unit_test(test_batch_larger_than_an_epoch),
        cmocka_unit_test(test_rows_are_those_of_the_files),
        cmocka_unit_test(test_dynamic_masks),
        cmocka_unit_test(test_validation_order_and_fillers),
        cmocka_unit_test(test_stream_ends),
        cmocka_unit_test(test_rank_with_fillers_only),
        cmocka_unit_test(test_nvidia_files),
        cmocka_unit_test(test_wrong_options),
        cmocka_unit_test(test_wrong_shards),
        cmocka_unit_test(test_mixed_shards),
        cmocka_unit_test(test_bad_row_found_by_the_thread),
        cmocka_unit_test(test_shard_that_changes),
        cmocka_unit_test(test_closing_early),
        cmocka_unit_test(test_batch_is_stable),
        cmocka_unit_test(test_fingerprint),
        cmocka_unit_test(test_order_is_fixed_for_good),
    };
    return cmocka_run_group_tests(tests, set_up, remove_folder);
}
