#include "support/scratch.h"
#include "support/test_device.h"

#include "launch/checkpoint.h"
#include "launch/safetensors.h"

#include <errno.h>
#include <math.h>
#include <sys/mount.h>

enum { LARGE = 300000 /* floats: more than go through host memory at a time */ };

static tt_device *device;

/* Three groups; each buffer filled with other numbers. */
static void make_parameters(tt_parameters *parameters, int64_t large, const char *last_name)
{
    tt_error error;
    tt_parameter_id id;
    tt_parameters_init(parameters, device);
    const int64_t weight[] = {3, large / 3}, core[] = {1, 4, 5}, vector[] = {7};
    expect_success(tt_parameters_add(parameters, "encoder.weight", TT_GROUP_DENSE, true, 2, weight,
                                     &id, &error),
                   &error);
    expect_success(
        tt_parameters_add(parameters, "encoder.core_1", TT_GROUP_CORES, true, 3, core, &id, &error),
        &error);
    expect_success(
        tt_parameters_add(parameters, last_name, TT_GROUP_DIAGONALS, false, 1, vector, &id, &error),
        &error);
    expect_success(tt_parameters_allocate(parameters, true, &error), &error);
}

static void fill(tt_parameters *parameters, float start)
{
    for (int i = 0; i < parameters->count; i++) {
        const tt_parameter *item = &parameters->items[i];
        size_t bytes = tt_floats(item->count);
        float *values = test_host(bytes), *first = test_host(bytes), *second = test_host(bytes);
        for (int64_t j = 0; j < item->count; j++) {
            values[j] = start + (float)j * 0.1f;
            first[j] = -start - (float)j;
            second[j] = start * 1e-20f + (float)j;
        }
        device->copy_in(device, parameters->values + item->offset, values, bytes);
        device->copy_in(device, parameters->first_moment + item->offset, first, bytes);
        device->copy_in(device, parameters->second_moment + item->offset, second, bytes);
        free(values);
        free(first);
        free(second);
    }
}

static void assert_same_buffer(const float *a, const float *b, int64_t count)
{
    float *found = test_copy_out(device, a, tt_floats(count));
    float *expected = test_copy_out(device, b, tt_floats(count));
    assert_int_equal(memcmp(found, expected, tt_floats(count)), 0);
    free(found);
    free(expected);
}

static void assert_same(const tt_parameters *a, const tt_parameters *b)
{
    assert_int_equal(a->total, b->total);
    assert_same_buffer(a->values, b->values, a->total);
    assert_same_buffer(a->first_moment, b->first_moment, a->total);
    assert_same_buffer(a->second_moment, b->second_moment, a->total);
}

static tt_training_state state_of(int64_t step, double validation_loss)
{
    return (tt_training_state){.step = step,
                               .phase = 1,
                               .phase_step = step - 1,
                               .phase_samples = 8 * step,
                               .epoch = 3,
                               .samples = INT64_C(1) << 53,
                               .tokens = 77,
                               .updates = step - 1,
                               .skipped_steps = 2,
                               .skipped_in_a_row = 1,
                               .seed = UINT64_MAX,
                               .data_fingerprint = UINT64_C(0x8000000000000001),
                               .world_size = 4,
                               .validation_loss = validation_loss,
                               .best_validation_loss = 0.1,
                               .best_step = -1,
                               .recipe = (char *)"name: \"x\"\n"};
}

static const char *fresh_folder(const char *name)
{
    const char *folder = scratch_path(name);
    scratch_remove(folder);
    return folder;
}

static tt_status save(const char *folder, const tt_parameters *parameters, int64_t step,
                      double validation_loss, int keep, bool keep_best, tt_error *error)
{
    tt_training_state state = state_of(step, validation_loss);
    const tt_checkpoint_policy policy = {.keep = keep, .keep_best = keep_best};
    return tt_checkpoint_save(folder, parameters, &state, &policy, error);
}

static void save_steps(const char *folder, int64_t first, int64_t last)
{
    tt_parameters parameters;
    tt_error error;
    make_parameters(&parameters, 12, "diagonal");
    for (int64_t step = first; step <= last; step++) {
        fill(&parameters, (float)step);
        expect_success(save(folder, &parameters, step, NAN, 100, false, &error), &error);
    }
    tt_parameters_free(&parameters);
}

static bool exists(const char *folder, const char *name)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return access(path, F_OK) == 0;
}

/* Entries of a folder, "." and ".." left out. */
static int count_entries(const char *folder)
{
    int count = 0;
    DIR *entries = opendir(folder);
    assert_non_null(entries);
    for (struct dirent *entry = readdir(entries); entry != NULL; entry = readdir(entries)) {
        count += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
    }
    closedir(entries);
    return count;
}

/* The newest checkpoint is `name` ("": none); returns the warnings, to be freed. */
static char *assert_newest(const char *folder, const char *name)
{
    char path[TT_CHECKPOINT_PATH], expected[1024] = "";
    tt_error error;
    const char *warnings_path = scratch_path("warnings");
    FILE *warnings = fopen(warnings_path, "w");
    expect_success(tt_checkpoint_find_newest(folder, path, warnings, &error), &error);
    fclose(warnings);
    if (name[0] != '\0') {
        snprintf(expected, sizeof expected, "%s/%s", folder, name);
    }
    assert_string_equal(path, expected);
    return scratch_read(warnings_path, NULL);
}

static void flip_byte(const char *path, long offset)
{
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    assert_int_equal(fseek(file, offset, offset < 0 ? SEEK_END : SEEK_SET), 0);
    int byte = fgetc(file);
    assert_int_equal(fseek(file, -1, SEEK_CUR), 0);
    fputc(byte ^ 1, file);
    fclose(file);
}

static void join(char path[1024], const char *folder, const char *name)
{
    snprintf(path, 1024, "%.800s/%.200s", folder, name);
}

static void test_round_trip(void **state)
{
    (void)state;
    const char *folder = fresh_folder("round/trip");
    tt_parameters saved, loaded;
    tt_error error;
    make_parameters(&saved, LARGE, "diagonal");
    make_parameters(&loaded, LARGE, "diagonal");
    fill(&saved, 1.5f);
    const float odd[] = {NAN, 1.0f, -0.0f};
    device->copy_in(device, saved.values + 3, odd, sizeof odd);

    tt_training_state written = state_of(1234, NAN);
    tt_checkpoint_layer layers[] = {
        {"encoder", {.order = 3, .input_order = 2, .modes = {2, 3, 4}, .ranks = {1, 2, 3, 1}}}};
    written.layers = layers;
    written.layer_count = 1;
    const tt_checkpoint_policy policy = {.keep = 1};
    expect_success(tt_checkpoint_save(folder, &saved, &written, &policy, &error), &error);
    free(assert_newest(folder, "step_00001234"));

    char path[1024];
    join(path, folder, "step_00001234");
    assert_int_equal(count_entries(path), 4);
    expect_success(tt_checkpoint_load(path, &loaded, true, &error), &error);
    assert_same(&saved, &loaded);

    tt_training_state read;
    expect_success(tt_checkpoint_read_state(path, &read, &error), &error);
    assert_int_equal(read.step, 1234);
    assert_int_equal(read.phase, 1);
    assert_int_equal(read.phase_step, 1233);
    assert_int_equal(read.phase_samples, 9872);
    assert_int_equal(read.epoch, 3);
    assert_true(read.samples == INT64_C(1) << 53);
    assert_int_equal(read.updates, 1233);
    assert_int_equal(read.skipped_in_a_row, 1);
    assert_true(read.seed == UINT64_MAX);
    assert_true(read.data_fingerprint == UINT64_C(0x8000000000000001));
    assert_int_equal(read.world_size, 4);
    assert_true(isnan(read.validation_loss));
    assert_true(read.best_validation_loss == 0.1);
    assert_int_equal(read.best_step, -1);
    assert_string_equal(read.recipe, written.recipe);
    assert_int_equal(read.layer_count, 1);
    assert_memory_equal(&read.layers[0].shape, &layers[0].shape, sizeof layers[0].shape);
    assert_string_equal(read.layers[0].name, "encoder");
    tt_training_state_free(&read);
    tt_parameters_free(&saved);
    tt_parameters_free(&loaded);
}

static void test_values_alone(void **state)
{
    (void)state;
    const char *folder = fresh_folder("values");
    tt_parameters saved, loaded;
    tt_error error;
    make_parameters(&saved, 12, "diagonal");
    make_parameters(&loaded, 12, "diagonal");
    fill(&saved, 1.5f);
    expect_success(save(folder, &saved, 1, NAN, 1, false, &error), &error);
    char path[1024];
    join(path, folder, "step_00000001");
    expect_success(tt_checkpoint_load(path, &loaded, false, &error), &error);
    assert_same_buffer(saved.values, loaded.values, saved.total);
    float *first = test_copy_out(device, loaded.first_moment, tt_floats(loaded.total));
    float *second = test_copy_out(device, loaded.second_moment, tt_floats(loaded.total));
    for (int64_t i = 0; i < loaded.total; i++) {
        assert_true(first[i] == 0 && second[i] == 0);
    }
    free(first);
    free(second);
    tt_parameters_free(&saved);
    tt_parameters_free(&loaded);
}

static void test_another_model_is_refused(void **state)
{
    (void)state;
    const char *folder = fresh_folder("other");
    save_steps(folder, 1, 1);
    char path[1024];
    join(path, folder, "step_00000001");
    tt_parameters other;
    tt_error error;
    make_parameters(&other, 15, "other");
    fill(&other, 9);
    tt_status status = tt_checkpoint_load(path, &other, true, &error);
    expect_failure(status, &error, "model.safetensors: not this recipe's model");
    expect_failure(status, &error,
                   "shape of encoder.weight: expected F32 [3, 5], found F32 [3, 4]");
    expect_failure(status, &error, "missing other");
    expect_failure(status, &error, "unexpected diagonal");
    float *kept = test_copy_out(device, other.values + other.items[0].offset, sizeof *kept);
    assert_true(*kept == 9);
    free(kept);
    tt_parameters_free(&other);
}

static void test_what_is_kept(void **state)
{
    (void)state;
    const char *folder = fresh_folder("kept");
    tt_parameters parameters;
    tt_error error;
    make_parameters(&parameters, 12, "diagonal");
    const double losses[] = {3, 1, 2, NAN, 1.5, NAN};
    for (int64_t step = 1; step <= 6; step++) {
        expect_success(save(folder, &parameters, step, losses[step - 1], 2, true, &error), &error);
    }
    assert_int_equal(count_entries(folder), 3);
    assert_true(exists(folder, "step_00000002"));
    assert_true(exists(folder, "step_00000005"));
    assert_true(exists(folder, "step_00000006"));
    expect_success(save(folder, &parameters, 7, 0.5, 1, true, &error), &error);
    assert_int_equal(count_entries(folder), 1);
    assert_true(exists(folder, "step_00000007"));
    expect_success(save(folder, &parameters, 8, 0.9, 0, false, &error), &error);
    assert_int_equal(count_entries(folder), 1);
    assert_true(exists(folder, "step_00000008"));
    tt_parameters_free(&parameters);
}

static void test_damaged_ones_do_not_count_as_kept(void **state)
{
    (void)state;
    const char *folder = fresh_folder("counted");
    save_steps(folder, 1, 3);
    char path[1024];
    join(path, folder, "step_00000003/manifest.json");
    assert_int_equal(unlink(path), 0);
    tt_parameters parameters;
    tt_error error;
    make_parameters(&parameters, 12, "diagonal");
    expect_success(save(folder, &parameters, 4, NAN, 2, false, &error), &error);
    assert_true(exists(folder, "step_00000002"));
    assert_false(exists(folder, "step_00000001"));
    /* A course of the run that was given up does not push out the one that goes on. */
    expect_success(save(folder, &parameters, 2, NAN, 1, false, &error), &error);
    assert_true(exists(folder, "step_00000002"));
    assert_true(exists(folder, "step_00000004"));
    tt_parameters_free(&parameters);
}

static void test_same_step_again(void **state)
{
    (void)state;
    const char *folder = fresh_folder("again");
    save_steps(folder, 1, 2);
    tt_parameters parameters, loaded;
    tt_error error;
    make_parameters(&parameters, 12, "diagonal");
    make_parameters(&loaded, 12, "diagonal");
    fill(&parameters, 77);
    expect_success(save(folder, &parameters, 2, NAN, 5, false, &error), &error);
    free(assert_newest(folder, "step_00000002"));
    char path[1024];
    join(path, folder, "step_00000002");
    expect_success(tt_checkpoint_load(path, &loaded, true, &error), &error);
    assert_same(&parameters, &loaded);
    assert_int_equal(count_entries(folder), 2);
    tt_parameters_free(&parameters);
    tt_parameters_free(&loaded);
}

static void test_flipped_byte(void **state)
{
    (void)state;
    static const char *const files[] = {"model.safetensors", "optimizer.safetensors", "state.json"};
    for (int i = 0; i < 3; i++) {
        const char *folder = fresh_folder("flipped");
        save_steps(folder, 1, 3);
        char name[64], path[1024];
        snprintf(name, sizeof name, "step_00000003/%s", files[i]);
        join(path, folder, name);
        flip_byte(path, -5);
        char *warnings = assert_newest(folder, "step_00000002");
        assert_non_null(strstr(warnings, path));
        const char *expected = strstr(warnings, "expected xxh64 ");
        const char *found = strstr(warnings, ", found ");
        assert_non_null(expected);
        assert_non_null(found);
        assert_int_equal(strspn(expected + 15, "0123456789abcdef"), 16);
        assert_int_equal(strspn(found + 8, "0123456789abcdef"), 16);
        assert_memory_not_equal(expected + 15, found + 8, 16);
        free(warnings);
    }
}

static void test_other_damage(void **state)
{
    (void)state;
    const char *folder = fresh_folder("damaged");
    char path[1024];
    save_steps(folder, 1, 5);
    join(path, folder, "step_00000005/optimizer.safetensors");
    assert_int_equal(unlink(path), 0);
    join(path, folder, "step_00000004/model.safetensors");
    assert_int_equal(truncate(path, 100), 0);
    join(path, folder, "step_00000003/manifest.json");
    scratch_write(path, "{\"version\": 1, \"files\": [{\"name\": \"../../x\"}]}", 46);
    join(path, folder, "step_00000002/manifest.json");
    scratch_write(path, "", 0);
    char *warnings = assert_newest(folder, "step_00000001");
    assert_non_null(strstr(warnings, "step_00000005/optimizer.safetensors"));
    assert_non_null(strstr(warnings, "expected "));
    assert_non_null(strstr(warnings, " bytes, found 100"));
    assert_non_null(strstr(warnings, "step_00000003/manifest.json: files.0"));
    assert_non_null(strstr(warnings, "step_00000002/manifest.json"));
    free(warnings);
    join(path, folder, "step_00000001/manifest.json");
    assert_int_equal(unlink(path), 0);
    free(assert_newest(folder, ""));
}

static void test_names_that_are_none(void **state)
{
    (void)state;
    const char *folder = fresh_folder("names");
    free(assert_newest(folder, ""));
    save_steps(folder, 1, 1);
    static const char *const others[] = {"step_2", "step_00000003x", "step_-0000003", "notes",
                                         "step_99999999999999999999999"};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        char path[1024];
        join(path, folder, others[i]);
        assert_int_equal(mkdir(path, 0777), 0);
    }
    char *warnings = assert_newest(folder, "step_00000001");
    assert_string_equal(warnings, "");
    free(warnings);
}

static void test_leftovers_are_removed(void **state)
{
    (void)state;
    const char *folder = fresh_folder("leftovers");
    tt_error error;
    char path[1024], other[1024];
    save_steps(folder, 1, 3);
    /* Half a write, half a removal, and a write that only missed its last rename. */
    join(path, folder, ".tmp_step_00000009");
    assert_int_equal(mkdir(path, 0777), 0);
    join(path, folder, ".tmp_step_00000009/model.safetensors");
    scratch_write(path, "half", 4);
    join(path, folder, ".tmp_step_00000009/folder");
    assert_int_equal(mkdir(path, 0777), 0);
    join(path, folder, ".tmp_step_00000009/folder/link");
    assert_int_equal(symlink("../../step_00000002", path), 0);
    join(path, folder, ".tmp_note");
    scratch_write(path, "note", 4);
    join(path, folder, "step_00000001");
    join(other, folder, ".tmp_removed_00000001");
    assert_int_equal(rename(path, other), 0);
    join(path, folder, "step_00000003");
    join(other, folder, ".tmp_step_00000003");
    assert_int_equal(rename(path, other), 0);
    expect_success(tt_checkpoint_prepare(folder, &error), &error);
    assert_int_equal(count_entries(folder), 2);
    free(assert_newest(folder, "step_00000003"));
}

/* Writing fails at some point, and what was there before is all that is there after. */
static void test_full_disk(void **state)
{
    (void)state;
    const char *folder = fresh_folder("full");
    tt_parameters parameters;
    tt_error error;
    save_steps(folder, 1, 2);
    make_parameters(&parameters, LARGE, "diagonal");
    fill(&parameters, 1);
    const uint64_t large = LARGE;
    const uint64_t limits[] = {10, 100, 5000, large, large * 4 + 100, large * 4 + 700, large * 8};
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
        scratch_limit_files(limits[i]);
        tt_status status = save(folder, &parameters, 3, NAN, 1, false, &error);
        scratch_limit_files(0);
        expect_failure(status, &error, "cannot be written: File too large");
        assert_int_equal(status, TT_IO_FAILED);
        assert_int_equal(count_entries(folder), 2);
        free(assert_newest(folder, "step_00000002"));
    }
    expect_success(save(folder, &parameters, 3, NAN, 1, false, &error), &error);
    free(assert_newest(folder, "step_00000003"));
    tt_parameters_free(&parameters);
}

static void test_disk_too_small(void **state)
{
    (void)state;
    const char *folder = fresh_folder("tiny");
    assert_int_equal(mkdir(folder, 0777), 0);
    if (mount("none", folder, "tmpfs", 0, "size=1m") != 0) {
        skip(); /* only root may mount */
    }
    tt_parameters parameters;
    tt_error error;
    save_steps(folder, 1, 1);
    make_parameters(&parameters, LARGE, "diagonal");
    tt_status status = save(folder, &parameters, 2, NAN, 1, false, &error);
    int entries = count_entries(folder);
    char *warnings = assert_newest(folder, "step_00000001");
    umount(folder);
    free(warnings);
    expect_failure(status, &error, "not enough disk space for a checkpoint: expected 3.7 MB free");
    assert_int_equal(entries, 1);
    tt_parameters_free(&parameters);
}

static void test_folder_that_cannot_be(void **state)
{
    (void)state;
    const char *file = scratch_path("a_file");
    scratch_write(file, "x", 1);
    tt_parameters parameters;
    tt_error error;
    make_parameters(&parameters, 12, "diagonal");
    expect_failure(save(file, &parameters, 1, NAN, 1, false, &error), &error, file);
    char below[1024];
    join(below, file, "checkpoints");
    expect_failure(save(below, &parameters, 1, NAN, 1, false, &error), &error, file);
    tt_parameters_free(&parameters);
}

/* Whatever stands in the JSON files, reading says so or gets the state; it does not fall over. */
static void test_hostile_json(void **state)
{
    (void)state;
    const char *folder = fresh_folder("hostile");
    save_steps(folder, 1, 1);
    char checkpoint[1024], path[1024];
    join(checkpoint, folder, "step_00000001");
    tt_error error;
    tt_training_state read;
    static const char *const names[] = {"state.json", "manifest.json"};
    for (int file = 0; file < 2; file++) {
        join(path, checkpoint, names[file]);
        size_t length;
        char *good = scratch_read(path, &length);
        for (size_t at = 0; at < length; at++) {
            char *bad = malloc(length);
            memcpy(bad, good, length);
            bad[at] = (char)(bad[at] ^ (1 << (at % 8)));
            scratch_write(path, bad, at % 3 == 0 ? at : length);
            free(bad);
            if (tt_checkpoint_read_state(checkpoint, &read, &error) == TT_OK) {
                tt_training_state_free(&read);
            }
            bool whole = tt_checkpoint_verify(checkpoint, &error) == TT_OK;
            assert_true(file == 1 || !whole);
        }
        scratch_write(path, good, length);
        free(good);
    }
    expect_success(tt_checkpoint_verify(checkpoint, &error), &error);
    join(path, checkpoint, "state.json");
    scratch_write(path, "{\"version\": 2}", 14);
    expect_failure(tt_checkpoint_read_state(checkpoint, &read, &error), &error,
                   "state.json: version: expected 1, found 2");
    scratch_write(path, "{\"version\": 1, \"step\": \"3\"}", 27);
    expect_failure(tt_checkpoint_read_state(checkpoint, &read, &error), &error,
                   "state.json: step: expected an integer");
}

/* Counts that no training leaves, in a file that is well otherwise. */
static void test_impossible_counts(void **state)
{
    (void)state;
    const char *folder = fresh_folder("counts");
    save_steps(folder, 1, 1);
    char checkpoint[1024], path[1024];
    join(checkpoint, folder, "step_00000001");
    join(path, checkpoint, "state.json");
    char *good = scratch_read(path, NULL);
    static const struct {
        const char *key, *value, *expected;
    } cases[] = {
        {"phase", "-4611686018427387904", "phase: expected an integer of at least 0"},
        {"step", "-1", "step: expected an integer of at least 0"},
        {"tokens", "9007199254740993", "tokens: expected an integer of at most 9007199254740992"},
        {"phase_samples", "8", "phase_samples: expected 0, as phase_step"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char key[64], bad[16384];
        snprintf(key, sizeof key, "\"%s\": ", cases[i].key);
        const char *at = strstr(good, key);
        assert_non_null(at);
        at += strlen(key);
        const char *end = at + strcspn(at, ",\n");
        int length =
            snprintf(bad, sizeof bad, "%.*s%s%s", (int)(at - good), good, cases[i].value, end);
        assert_in_range(length, 1, sizeof bad - 1);
        char *step = i == 3 ? strstr(bad, "\"phase_step\": ") : NULL;
        if (step != NULL) {
            step[strlen("\"phase_step\": ")] = '0';
        }
        scratch_write(path, bad, (size_t)length);
        tt_training_state read;
        tt_error error;
        expect_failure(tt_checkpoint_read_state(checkpoint, &read, &error), &error,
                       cases[i].expected);
    }
    free(good);
}

/* Layers that no model has: shapes are computed with before they are compared with a recipe's. */
static void test_impossible_layers(void **state)
{
    (void)state;
    const char *folder = fresh_folder("layers");
    save_steps(folder, 2, 2);
    char checkpoint[1024], path[1024], text[16384];
    join(checkpoint, folder, "step_00000002");
    join(path, checkpoint, "state.json");
    char *good = scratch_read(path, NULL), *at = strstr(good, "\"layers\": []");
    assert_non_null(at);
    static const struct {
        const char *modes, *ranks;
        bool possible;
    } cases[] = {
        {"[6, 7]", "[1, 6, 1]", true},     {"[6, 7]", "[1, 0, 1]", true},
        {"[6, 7]", "[1, 7, 1]", false},    {"[6, 7]", "[1, 2, 3]", false},
        {"[6, 7]", "[0, 2, 1]", false},    {"[6, 7]", "[1, \"a\", 1]", false},
        {"[6, 7]", "[1, 2.5, 1]", false},  {"[6, 0]", "[1, 0, 1]", false},
        {"[6, null]", "[1, 0, 1]", false}, {"[4611686018427387904, 4]", "[1, 2, 1]", false}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int length = snprintf(text, sizeof text,
                              "%.*s\"layers\": [{\"name\": \"a\", \"input_order\": 1, \"modes\": "
                              "%s, \"ranks\": %s}]%s",
                              (int)(at - good), good, cases[i].modes, cases[i].ranks,
                              at + strlen("\"layers\": []"));
        assert_in_range(length, 1, sizeof text - 1);
        scratch_write(path, text, (size_t)length);
        tt_training_state read;
        tt_error error;
        tt_status status = tt_checkpoint_read_state(checkpoint, &read, &error);
        if (cases[i].possible) {
            expect_success(status, &error);
            tt_training_state_free(&read);
        } else {
            expect_failure(status, &error, "state.json: layers.0: expected name, input_order, ");
        }
    }
    free(good);
}

/* What is neither a file nor a folder is not waited for. */
static void test_pipe_in_place_of_file(void **state)
{
    (void)state;
    const char *folder = fresh_folder("pipe");
    char path[1024];
    save_steps(folder, 1, 2);
    join(path, folder, "step_00000002/model.safetensors");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkfifo(path, 0600), 0);
    char *warnings = assert_newest(folder, "step_00000001");
    assert_non_null(strstr(warnings, "model.safetensors: expected a file"));
    free(warnings);
    tt_safetensors *file;
    tt_error error;
    expect_failure(tt_safetensors_open(path, &file, &error), &error, "expected a safetensors file");
}

/* Damaged ones count as well. */
static void test_newest_step(void **state)
{
    (void)state;
    const char *folder = fresh_folder("newest [1]");
    char path[1024];
    assert_int_equal(tt_checkpoint_newest_step(folder), -1);
    save_steps(folder, 1, 2);
    join(path, folder, "step_00000007");
    assert_int_equal(mkdir(path, 0777), 0);
    join(path, folder, "step_99999999_kept");
    assert_int_equal(mkdir(path, 0777), 0);
    assert_int_equal(tt_checkpoint_newest_step(folder), 7);
}

static int setup(void **state)
{
    device = test_device(1);
    return scratch_setup(state);
}

static int teardown(void **state)
{
    tt_device_destroy(&device);
    return scratch_teardown(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_values_alone),
        cmocka_unit_test(test_another_model_is_refused),
        cmocka_unit_test(test_what_is_kept),
        cmocka_unit_test(test_damaged_ones_do_not_count_as_kept),
        cmocka_unit_test(test_same_step_again),
        cmocka_unit_test(test_flipped_byte),
        cmocka_unit_test(test_other_damage),
        cmocka_unit_test(test_names_that_are_none),
        cmocka_unit_test(test_leftovers_are_removed),
        cmocka_unit_test(test_full_disk),
        cmocka_unit_test(test_disk_too_small),
        cmocka_unit_test(test_folder_that_cannot_be),
        cmocka_unit_test(test_hostile_json),
        cmocka_unit_test(test_impossible_counts),
        cmocka_unit_test(test_impossible_layers),
        cmocka_unit_test(test_pipe_in_place_of_file),
        cmocka_unit_test(test_newest_step),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
