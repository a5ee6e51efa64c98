/* report, inspect and table on runs' folders whose files hold what no run writes, and scripts
 * started with words that they do not know. */
#include "support/captured.h"
#include "support/report_pages.h"

#include "launch/checkpoint.h"
#include "launch/command_line.h"
#include "launch/inspect.h"
#include "launch/report.h"
#include "launch/report_recipe.h"
#include "launch/table.h"

#include <jansson.h>
#include <math.h>
#include <sys/wait.h>

static void expect_one_line(const char *fragment)
{
    if (strstr(errors, fragment) == NULL || strchr(errors, '\n') != errors + strlen(errors) - 1) {
        fail_msg("expected one line with \"%s\", found \"%s\"", fragment, errors);
    }
}

static void write_text(const char *name, const char *text)
{
    scratch_write(scratch_path(name), text, strlen(text));
}

/* A run of nothing but these metrics. */
static const char *make_run(const char *name, const char *metrics)
{
    char path[256];
    assert_int_equal(mkdir(scratch_path(name), 0777), 0);
    snprintf(path, sizeof path, "%s/metrics.jsonl", name);
    write_text(path, metrics);
    return scratch_path(name);
}

/* --- metrics --- */

/* Tables of which a later row lacks what the first one has. */
static void test_inspect_uneven_records(void **state)
{
    (void)state;
    const char *folder = make_run(
        "uneven", "{\"step\": 1, \"phase\": \"a\", \"loss\": 2, \"masked_lm_loss\": 1, "
                  "\"accuracy\": 1, \"validation_loss\": 1, \"validation_unigram_entropy\": 4}\n"
                  "{\"step\": 2, \"phase\": \"b\", \"validation_loss\": 2}\n"
                  "{\"step\": 3, \"phase\": \"b\", \"compaction\": {\"parameters\": 4}}\n"
                  "{\"step\": 4, \"compaction\": {}}\n");
    assert_int_equal(run_captured(tt_inspect_main, folder, NULL, NULL), TT_EXIT_DONE);
    assert_non_null(strstr(output, "\nphases\n"));
    assert_non_null(strstr(output, "\nvalidation\n"));
    assert_string_equal(errors, "");
}

static void test_inspect_gigantic_numbers(void **state)
{
    (void)state;
    const char *folder =
        make_run("gigantic",
                 "{\"step\": 1, \"phase\": \"a\", \"tokens\": -9223372036854775807, \"timing\": "
                 "{\"tokens_per_s\": 1e-300}}\n"
                 "{\"step\": 2, \"phase\": \"a\", \"tokens\": 9223372036854775807, \"parameters\": "
                 "9223372036854775807, \"timing\": {\"tokens_per_s\": 1e308}}\n");
    assert_int_equal(run_captured(tt_inspect_main, folder, NULL, NULL), TT_EXIT_DONE);
    assert_int_equal(run_captured(tt_inspect_main, folder, "--json", NULL), TT_EXIT_DONE);
    json_t *report = json_loads(output, 0, NULL);
    assert_non_null(report);
    json_decref(report);
}

/* More maps than there is room for at first, of a run whose metrics say no ranks. */
static void test_report_of_many_layers(void **state)
{
    (void)state;
    enum { LAYERS = 300 };
    static char text[LAYERS * 128];
    const char *folder = make_run("many", "{\"step\": 1, \"loss\": 2}\n");
    assert_int_equal(mkdir(scratch_path("many/checkpoints"), 0777), 0);
    assert_int_equal(mkdir(scratch_path("many/checkpoints/step_00000001"), 0777), 0);
    write_text("many/checkpoints/step_00000001/manifest.json", "{}");
    size_t used = (size_t)snprintf(text, sizeof text, "{\"layers\": [");
    for (int i = 0; i < LAYERS; i++) {
        used += (size_t)snprintf(text + used, sizeof text - used,
                                 "%s{\"name\": \"map%d\", \"input_order\": 1, \"modes\": [4, 4], "
                                 "\"ranks\": [1, %d, 1]}",
                                 i > 0 ? ", " : "", i, i % 5);
    }
    snprintf(text + used, sizeof text - used, "]}");
    write_text("many/checkpoints/step_00000001/state.json", text);
    assert_int_equal(run_captured(tt_report_main, folder, NULL, NULL), TT_EXIT_DONE);
    char *page = scratch_read(scratch_path("many/report.html"), NULL);
    assert_non_null(strstr(page, "All 300 tensor trains"));
    assert_non_null(strstr(page, "map299"));
    free(page);
}

/* A recipe that is indented further than any recipe is. */
static void test_settings_far_to_the_right(void **state)
{
    (void)state;
    tt_report_setting settings[4];
    char text[4096];
    memset(text, ' ', sizeof text);
    snprintf(text + 3000, sizeof text - 3000, "- a: 1\nb: 2\n");
    assert_int_equal(tt_report_settings(text, settings, 4), 1);
    assert_string_equal(settings[0].key, "b");
    for (int blanks = 0; blanks < 64; blanks++) {
        snprintf(text, sizeof text, "%*sa: 1\n%*s- b: 1\n", blanks, "", blanks, "");
        assert_in_range(tt_report_settings(text, settings, 4), 0, 2);
    }
}

/* --- checkpoints --- */

static const char recipe_text[] =
    "name: %s\n"
    "model: {preset: small, vocabulary_size: 97}\n"
    "tensor_train: {form: tensor_train, rank: 4}\n"
    "phases: [{sequence_length: 32, steps: 5, global_batch: 8, learning_rate: 1e-4}]\n";

/* A run with one checkpoint of one train of two cores, [1, 6, 3] and [3, 7, 1], of which
 * state.json says the ranks given. */
static const char *save_run(const char *name, const char *recipe_name, const char *layer_name,
                            int64_t rank)
{
    tt_device *device;
    tt_parameters parameters;
    tt_parameter_id id;
    tt_error error;
    char recipe[1024];
    const int64_t first[] = {1, 6, 3}, last[] = {3, 7, 1}, diagonal[] = {3}, bias[] = {7};
    expect_success(tt_device_create_cpu(1, &device, &error), &error);
    tt_parameters_init(&parameters, device);
    const struct {
        const char *name;
        tt_group group;
        int dimensions;
        const int64_t *shape;
    } items[] = {{"map.core_1", TT_GROUP_CORES, 3, first},
                 {"map.rank_diagonal_1", TT_GROUP_DIAGONALS, 1, diagonal},
                 {"map.core_2", TT_GROUP_CORES, 3, last},
                 {"map.bias", TT_GROUP_DENSE, 1, bias}};
    for (size_t i = 0; i < sizeof items / sizeof *items; i++) {
        expect_success(tt_parameters_add(&parameters, items[i].name, items[i].group, false,
                                         items[i].dimensions, items[i].shape, &id, &error),
                       &error);
    }
    expect_success(tt_parameters_allocate(&parameters, true, &error), &error);
    tt_parameters_fill(&parameters, 1, 1.0f);
    snprintf(recipe, sizeof recipe, recipe_text, recipe_name);
    tt_checkpoint_layer layer = {
        .shape = {.order = 2, .input_order = 1, .modes = {6, 7}, .ranks = {1, rank, 1}}};
    snprintf(layer.name, sizeof layer.name, "%s", layer_name);
    const tt_training_state training = {.step = 1,
                                        .validation_loss = NAN,
                                        .best_validation_loss = NAN,
                                        .dense_parameters = 49,
                                        .recipe = recipe,
                                        .layers = &layer,
                                        .layer_count = 1};
    const tt_checkpoint_policy policy = {.keep = 1};
    char folder[512];
    snprintf(folder, sizeof folder, "%s/checkpoints", scratch_path(name));
    expect_success(tt_checkpoint_save(folder, &parameters, &training, &policy, &error), &error);
    tt_parameters_free(&parameters);
    tt_device_destroy(&device);
    return scratch_path(name);
}

static void refuse_table(const char *folder, const char *fragment)
{
    assert_int_equal(run_captured(tt_table_main, folder, NULL, NULL), TT_EXIT_FAILED);
    assert_string_equal(output, "");
    expect_one_line(fragment);
}

/* What state.json says of a train must be what the model's file has of it. */
static void test_table_of_what_does_not_fit(void **state)
{
    (void)state;
    assert_int_equal(run_captured(tt_table_main, save_run("fits", "a", "map", 3), NULL, NULL),
                     TT_EXIT_DONE);
    assert_non_null(strstr(output, "map"));
    refuse_table(save_run("raised", "a", "map", 4),
                 "map.core_1: expected F32 of ranks 1 and 4 and mode 6, as state.json says; found "
                 "another shape");
    refuse_table(save_run("renamed", "a", "other", 3),
                 "other.core_1: expected F32 of ranks 1 and 3 and mode 6, as state.json says; "
                 "found no such tensor");
    refuse_table(save_run("removed", "a", "map", 0),
                 "model.safetensors: expected 0 cores and diagonals, as state.json says; found 3");
}

/* No run takes another's column. */
static void test_table_of_runs_of_one_name(void **state)
{
    (void)state;
    const char *one = save_run("one", "twin", "map", 3), *two = save_run("two", "twin", "map", 3);
    assert_int_equal(run_captured(tt_table_main, one, two, "--json"), TT_EXIT_DONE);
    json_t *report = json_loads(output, 0, NULL);
    const json_t *row = json_array_get(json_object_get(report, "ranks"), 0);
    assert_int_equal(json_object_size(row), 3);
    assert_string_equal(json_string_value(json_object_get(row, one)), "3");
    assert_string_equal(json_string_value(json_object_get(row, two)), "3");
    json_decref(report);
    assert_int_equal(run_captured(tt_table_main, save_run("l", "layer", "map", 3), "--json", NULL),
                     TT_EXIT_DONE);
    report = json_loads(output, 0, NULL);
    row = json_array_get(json_object_get(report, "ranks"), 0);
    assert_string_equal(json_string_value(json_object_get(row, "layer")), "map");
    json_decref(report);
}

/* A report that finds no room is a failure with a reason, and leaves nothing behind. */
static void test_report_without_room(void **state)
{
    (void)state;
    const char *folder = make_run("no_room", "{\"step\": 1, \"loss\": 2}\n");
    char command[2048];
    snprintf(command, sizeof command, "ulimit -f 1; '%s' report %s 2>%s >/dev/null", TTRAIN_PROGRAM,
             folder, scratch_path("stderr"));
    int ended = system(command); /* NOLINT(cert-env33-c): of this test's own words */
    assert_int_equal(WEXITSTATUS(ended), TT_EXIT_FAILED);
    free(errors);
    errors = scratch_read(scratch_path("stderr"), NULL);
    expect_one_line("report.html: File too large");
    snprintf(command, sizeof command, "test $(ls %s | wc -l) = 1", folder);
    assert_int_equal(system(command), 0); /* NOLINT(cert-env33-c): of this test's own words */
}

/* --- scripts --- */

/* Exit status, and the first line of what it says. */
static void expect_gpu_check(const char *words, int status, const char *first_line)
{
    char command[1024];
    snprintf(command, sizeof command, "bash %s/launch/gpu_check.sh %s 2>%s >/dev/null",
             TTRAIN_SOURCE_DIR, words, scratch_path("stderr"));
    int ended = system(command); /* NOLINT(cert-env33-c): of this test's own words */
    assert_int_equal(WEXITSTATUS(ended), status);
    char *said = scratch_read(scratch_path("stderr"), NULL);
    if (strncmp(said, first_line, strlen(first_line)) != 0) {
        fail_msg("%s: expected \"%s\", found \"%s\"", words, first_line, said);
    }
    free(said);
}

static void test_gpu_check_words(void **state)
{
    (void)state;
    char words[600];
    expect_gpu_check("", 2, "gpu_check: expected pack or run, found nothing\nUsage: ");
    expect_gpu_check("packs", 2, "gpu_check: expected pack or run, found 'packs'\n");
    expect_gpu_check("run now", 2, "gpu_check: unexpected argument 'now'\n");
    expect_gpu_check("pack now", 2, "gpu_check: unexpected argument 'now'\n");
    expect_gpu_check("pack --output", 2, "gpu_check: --output: expected a value, found nothing\n");
    expect_gpu_check("run", 1, "gpu_check: " TTRAIN_SOURCE_DIR "/launch: expected a folder that ");
    /* A folder of other things is not taken for an earlier pack, which would be removed. */
    assert_int_equal(mkdir(scratch_path("mine"), 0777), 0);
    write_text("mine/thesis.txt", "all of it");
    snprintf(words, sizeof words, "pack --output %s", scratch_path("mine"));
    expect_gpu_check(words, 1, "gpu_check: ");
    assert_int_equal(access(scratch_path("mine/thesis.txt"), R_OK), 0);
}

static int teardown(void **state)
{
    free_captured();
    return scratch_teardown(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_inspect_uneven_records),
        cmocka_unit_test(test_inspect_gigantic_numbers),
        cmocka_unit_test(test_report_of_many_layers),
        cmocka_unit_test(test_settings_far_to_the_right),
        cmocka_unit_test(test_table_of_what_does_not_fit),
        cmocka_unit_test(test_table_of_runs_of_one_name),
        cmocka_unit_test(test_report_without_room),
        cmocka_unit_test(test_gpu_check_words),
    };
    return cmocka_run_group_tests(tests, scratch_setup, teardown);
}
