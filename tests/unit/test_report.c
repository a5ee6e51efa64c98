#include "support/report_pages.h"
#include "support/scratch.h"

#include "launch/command_line.h"
#include "launch/report.h"
#include "launch/report_curve.h"
#include "launch/report_ranks.h"
#include "launch/report_recipe.h"
#include "launch/report_scale.h"
#include "launch/report_text.h"

#include <math.h>

/* --- runs to read --- */

static void make_folder(const char *name)
{
    assert_int_equal(mkdir(scratch_path(name), 0777), 0);
}

static void write_text(const char *name, const char *text)
{
    scratch_write(scratch_path(name), text, strlen(text));
}

/* A run of two phases that was resumed once, was killed within a line, and compacted twice. */
static const char full_metrics[] =
    "{\"step\": 0, \"compaction\": {\"parameters\": 1000, \"ranks\": "
    "{\"bert.encoder.layer.0.attention.self.query\": [1, 4, 4, 4, 1], "
    "\"bert.pooler.dense\": [1, 8, 1]}}}\n"
    "{\"step\": 1, \"phase\": \"one\", \"loss\": 4, \"learning_rate\": 1e-3, "
    "\"core_learning_rate\": 1e-3, \"diagonal_learning_rate\": 5e-4, \"parameters\": 1000, "
    "\"size\": 500, \"relaxed_size\": 450.5, \"size_ratio\": 1, \"stage\": \"early\", \"branch\": "
    "null, \"timing\": {\"step_ms\": 20, \"tokens_per_s\": 1000, \"elapsed_s\": 5}}\n"
    "{\"step\": 2, \"phase\": \"one\", \"loss\": null, \"tokens\": 64, \"timing\": "
    "{\"tokens_per_s\": 3000, \"elapsed_s\": 9}}\n"
    "{\"step\": 3, \"phase\": \"two\", \"loss\": 3, \"validation_loss\": 3.25, \"stage\": "
    "\"late\", "
    "\"branch\": \"size\", \"timing\": {\"tokens_per_s\": 2000, \"elapsed_s\": 2}}\n"
    "{\"step\": 3, \"compaction\": {\"parameters\": 900, \"ranks\": "
    "{\"bert.encoder.layer.0.attention.self.query\": [1, 3, 2, 4, 1], "
    "\"bert.pooler.dense\": [1, 0, 1]}}}\n"
    "{\"step\": 4, \"phase\": \"two\", \"loss\": 2.5, \"parameters\": 900, \"timing\": "
    "{\"elapsed_s\": 3}}\n";

static const char full_state[] =
    "{\"dense_parameters\": 5000, \"layers\": [{\"name\": "
    "\"bert.encoder.layer.0.attention.self.query\", \"input_order\": 2, \"modes\": [4, 4, 2, 8], "
    "\"ranks\": [1, 3, 2, 4, 1]}, {\"name\": \"bert.pooler.dense\", \"input_order\": 1, \"modes\": "
    "[16, 16], \"ranks\": [1, 0, 1]}]}";

static const char full_recipe[] = "# made by hand\n"
                                  "name: \"a \\\"b\\\" <c> & d\"\n"
                                  "seed: 1\n"
                                  "model:\n"
                                  "  layers: 2\n"
                                  "phases:\n"
                                  "  - name: \"one\"\n"
                                  "    steps: 2\n"
                                  "  - name: \"two\"\n"
                                  "    steps: 2\n"
                                  "log:\n"
                                  "  interval: 1\n";

static void make_full_run(const char *name, const char *metrics_end)
{
    char path[256];
    make_folder(name);
    snprintf(path, sizeof path, "%s/metrics.jsonl", name);
    char *metrics = malloc(sizeof full_metrics + strlen(metrics_end));
    strcat(strcpy(metrics, full_metrics), metrics_end);
    write_text(path, metrics);
    free(metrics);
    snprintf(path, sizeof path, "%s/recipe.yaml", name);
    write_text(path, full_recipe);
    snprintf(path, sizeof path, "%s/checkpoints", name);
    make_folder(path);
    static const char *const steps[] = {"step_00000002", "step_00000004", "step_00000009"};
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/checkpoints/%s", name, steps[i]);
        make_folder(path);
        snprintf(path, sizeof path, "%s/checkpoints/%s/state.json", name, steps[i]);
        write_text(path, i == 1 ? full_state : "{\"dense_parameters\": 1}");
        snprintf(path, sizeof path, "%s/checkpoints/%s/manifest.json", name, steps[i]);
        if (i < 2) {
            write_text(path, "{}"); /* without a manifest it is no checkpoint */
        }
    }
}

static void read_run(const char *path, tt_report_run *run)
{
    tt_error error;
    expect_success(tt_report_read(path, run, &error), &error);
}

static tt_status read_text(const char *text, tt_report_run *run, tt_error *error)
{
    FILE *stream = fmemopen((void *)text, strlen(text), "r");
    assert_non_null(stream);
    *run = (tt_report_run){.record_count = 0};
    tt_status status = tt_report_read_metrics(stream, "metrics", run, error);
    fclose(stream);
    return status;
}

/* --- reading --- */

static void test_whole_run(void **state)
{
    (void)state;
    tt_report_run *run = malloc(sizeof *run);
    make_full_run("full", "{\"step\": 5, \"lo");
    read_run(scratch_path("full"), run);
    assert_string_equal(run->name, "a \"b\" <c> & d");
    assert_int_equal(run->record_count, 4);
    assert_true(run->torn);
    assert_int_equal(run->bad_lines, 0);
    assert_true(run->records[0].values[TT_REPORT_LOSS] == 4);
    assert_true(isnan(run->records[1].values[TT_REPORT_LOSS]));
    assert_true(isnan(run->records[0].values[TT_REPORT_VALIDATION_LOSS]));
    assert_true(run->records[0].values[TT_REPORT_STEP_MS] == 20);
    /* The clock began anew at step 3. */
    assert_true(run->records[1].values[TT_REPORT_ELAPSED_S] == 9);
    assert_true(run->records[2].values[TT_REPORT_ELAPSED_S] == 11);
    assert_true(run->records[3].values[TT_REPORT_ELAPSED_S] == 12);
    assert_true(run->dense_parameters == 5000);
    assert_int_equal(run->name_counts[TT_REPORT_PHASE], 2);
    assert_string_equal(run->names[TT_REPORT_STAGE][run->records[2].texts[TT_REPORT_STAGE]],
                        "late");
    assert_int_equal(run->records[0].texts[TT_REPORT_BRANCH], -1);
    assert_true(tt_report_last(run, TT_REPORT_RELAXED_SIZE) == 450.5);
    assert_false(tt_report_has(run, TT_REPORT_ACCURACY));
    tt_report_free(run);
    free(run);
}

static void test_compactions(void **state)
{
    (void)state;
    tt_report_run *run = malloc(sizeof *run);
    make_full_run("compacted", "");
    read_run(scratch_path("compacted"), run);
    assert_false(run->torn);
    assert_int_equal(run->compaction_count, 2);
    assert_int_equal(run->map_count, 2);
    assert_true(run->compactions[1].step == 3 && run->compactions[1].parameters == 900);
    const tt_report_ranks *ranks = tt_report_ranks_at(run, 1, 0);
    assert_int_equal(ranks->count, 5);
    assert_int_equal(ranks->ranks[2], 2);
    assert_true(run->maps[0].inputs == 16 && run->maps[0].outputs == 16);
    /* 1*4*3 + 3*4*2 + 2*2*4 + 4*8*1 entries of cores, 3 + 2 + 4 of diagonals. */
    assert_true(tt_report_map_parameters(&run->maps[0], ranks) == 12 + 24 + 16 + 32 + 9);
    assert_false(tt_report_is_removed(ranks));
    assert_true(tt_report_is_removed(tt_report_ranks_at(run, 1, 1)));
    assert_true(tt_report_map_parameters(&run->maps[1], tt_report_ranks_at(run, 1, 1)) == 0);
    assert_null(tt_report_ranks_at(run, 2, 0));
    assert_null(tt_report_ranks_at(run, 0, 2));
    tt_report_free(run);
    free(run);
}

static void test_ways_to_name_a_run(void **state)
{
    (void)state;
    tt_report_run *run = malloc(sizeof *run);
    make_folder("plain");
    write_text("plain/metrics.jsonl", "{\"step\": 1, \"loss\": 1}\n");
    const char *ways[] = {"plain", "plain/", "plain//", "plain/metrics.jsonl"};
    for (int i = 0; i < 4; i++) {
        read_run(scratch_path(ways[i]), run);
        assert_string_equal(run->path, scratch_path("plain"));
        assert_string_equal(run->name, "plain");
        assert_null(run->recipe);
        assert_true(isnan(run->dense_parameters));
        tt_report_free(run);
    }
    write_text("plain/recipe.yaml", "name: \"\"\n");
    read_run(scratch_path("plain"), run);
    assert_string_equal(run->name, "plain");
    tt_report_free(run);
    free(run);
}

static void test_lines_that_are_no_records(void **state)
{
    (void)state;
    tt_report_run *run = malloc(sizeof *run);
    tt_error error;
    expect_success(read_text("{\"step\": 1, \"loss\": 1}\n"
                             "garbage\n"
                             "{\"step\": -1}\n"
                             "{\"step\": \"2\", \"loss\": 2}\n"
                             "{\"loss\": 2}\n"
                             "{\"step\": 2, \"loss\": \"high\", \"stage\": 7}\n"
                             "[]\n",
                             run, &error),
                   &error);
    assert_int_equal(run->record_count, 2);
    assert_int_equal(run->bad_lines, 5);
    assert_int_equal(run->first_bad_line, 2);
    assert_true(isnan(run->records[1].values[TT_REPORT_LOSS]));
    assert_string_equal(run->names[TT_REPORT_STAGE][0], "7");
    tt_report_free(run);
    free(run);
}

static void test_steps_done_twice(void **state)
{
    (void)state;
    tt_report_run *run = malloc(sizeof *run);
    tt_error error;
    expect_success(read_text("{\"step\": 1, \"loss\": 1}\n{\"step\": 2, \"loss\": 2}\n"
                             "{\"step\": 3, \"loss\": 3}\n{\"step\": 2, \"loss\": 20}\n"
                             "{\"step\": 2, \"compaction\": {\"parameters\": 4}}\n"
                             "{\"step\": 2, \"compaction\": {\"parameters\": 5}}\n",
                             run, &error),
                   &error);
    assert_int_equal(run->record_count, 2);
    assert_true(run->records[1].values[TT_REPORT_LOSS] == 20);
    assert_int_equal(run->compaction_count, 1);
    assert_true(run->compactions[0].parameters == 5);
    tt_report_free(run);
    free(run);
}

static void test_runs_that_are_none(void **state)
{
    (void)state;
    tt_report_run *run = malloc(sizeof *run);
    tt_error error;
    expect_failure(tt_report_read(scratch_path("nowhere"), run, &error), &error,
                   "nowhere/metrics.jsonl: No such file or directory");
    tt_report_free(run);
    make_folder("empty");
    write_text("empty/metrics.jsonl", "");
    expect_failure(tt_report_read(scratch_path("empty"), run, &error), &error,
                   "empty/metrics.jsonl: expected records of steps, found none");
    tt_report_free(run);
    write_text("empty/metrics.jsonl", "{\"step\": 0, \"compaction\": {}}\n{\"st");
    expect_failure(tt_report_read(scratch_path("empty"), run, &error), &error,
                   "found none that is whole");
    tt_report_free(run);
    free(run);
}

/* --- numbers, names, axes --- */

static void test_numbers_for_people(void **state)
{
    (void)state;
    char text[TT_REPORT_NUMBER];
    assert_string_equal(tt_report_integer(0, text), "0");
    assert_string_equal(tt_report_integer(999, text), "999");
    assert_string_equal(tt_report_integer(66957315, text), "66,957,315");
    assert_string_equal(tt_report_integer(-1234, text), "-1,234");
    assert_string_equal(tt_report_real(3.61347, text), "3.613");
    assert_string_equal(tt_report_real(0.00015, text), "0.00015");
    assert_string_equal(tt_report_real(1.25e-9, text), "1.25e-09");
    assert_string_equal(tt_report_real(12345.6, text), "12,346");
    assert_string_equal(tt_report_real(NAN, text), "\xE2\x80\x93");
    assert_string_equal(tt_report_duration(5.25, text), "5.2 s");
    assert_string_equal(tt_report_duration(725, text), "12 min 05 s");
    assert_string_equal(tt_report_duration(90000, text), "1 d 01 h");
    assert_string_equal(tt_report_duration(-1, text), "\xE2\x80\x93");
    assert_string_equal(tt_report_bytes(999, text), "999 B");
    assert_string_equal(tt_report_bytes(2249116, text), "2.2 MB");
    assert_string_equal(tt_report_bytes(267829260, text), "268 MB");
}

static void expect_escaped(const char *text, const char *expected)
{
    char *found = NULL;
    size_t size;
    FILE *stream = open_memstream(&found, &size);
    tt_report_escape(stream, text);
    fclose(stream);
    assert_string_equal(found, expected);
    free(found);
}

static void test_escaping(void **state)
{
    (void)state;
    expect_escaped("<a href=\"x\" b='y'>&amp;",
                   "&lt;a href=&quot;x&quot; b=&#39;y&#39;&gt;&amp;amp;");
    expect_escaped("\xC3\xA9\xE2\x86\x92", "\xC3\xA9\xE2\x86\x92");
    expect_escaped("a\x01\x1b\x7f z", "a\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD z");
    expect_escaped("\xff\xC3", "\xEF\xBF\xBD\xEF\xBF\xBD");
    expect_escaped("\xED\xA0\x80", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");
}

static void expect_map_name(const char *name, int64_t expected_block, const char *expected_part)
{
    int64_t block;
    char part[TT_REPORT_NAME];
    tt_report_map_name(name, &block, part);
    assert_int_equal(block, expected_block);
    assert_string_equal(part, expected_part);
}

static void test_map_names(void **state)
{
    (void)state;
    expect_map_name("bert.encoder.layer.11.attention.self.query", 11, "query");
    expect_map_name("bert.encoder.layer.0.attention.output.dense", 0, "attention output");
    expect_map_name("bert.encoder.layer.0.output.dense", 0, "output");
    expect_map_name("bert.embeddings.word_embeddings", -1, "word embeddings");
    expect_map_name("cls.predictions.transform.dense", -1, "transform");
    expect_map_name("bert.encoder.layer.x.output.dense", -1, "encoder.layer.x.output");
    expect_map_name("", -1, "");
}

static void expect_ticks(const tt_scale *scale, const char *expected)
{
    char text[512] = "", label[TT_SCALE_LABEL];
    for (int i = 0; i < scale->tick_count; i++) {
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%s", i > 0 ? " " : "",
                 tt_scale_label(scale, scale->ticks[i], label));
    }
    assert_string_equal(text, expected);
}

static void test_ticks_are_round(void **state)
{
    (void)state;
    tt_scale scale = tt_scale_make(0.41, 1.33, 5, true, TT_CHART_NUMBER);
    expect_ticks(&scale, "0.4 0.6 0.8 1.0 1.2 1.4");
    scale = tt_scale_make(0, 12000, 6, false, TT_CHART_NUMBER);
    expect_ticks(&scale, "0 2k 4k 6k 8k 10k 12k");
    scale = tt_scale_make(0, 1.5e-3, 3, true, TT_CHART_NUMBER);
    expect_ticks(&scale, "0 0.5 1.0 1.5");
    assert_string_equal(scale.unit, "10^-3");
    scale = tt_scale_make(0, 4000, 4, false, TT_CHART_SECONDS);
    expect_ticks(&scale, "0 20 40 60");
    assert_string_equal(scale.unit, "min");
    scale = tt_scale_make(0.31, 0.97, 5, true, TT_CHART_PERCENT);
    expect_ticks(&scale, "20% 40% 60% 80% 100%");
    scale = tt_scale_make_logarithmic(562279, 66957315);
    expect_ticks(&scale, "100k 1M 10M 100M");
    /* One value only, and values whose differences are lost in rounding. */
    scale = tt_scale_make(5, 5, 5, true, TT_CHART_NUMBER);
    assert_true(scale.low < 5 && scale.high > 5 && scale.tick_count > 1);
    scale = tt_scale_make(1e300, 1e300, 5, true, TT_CHART_NUMBER);
    assert_true(scale.high > scale.low && scale.tick_count > 0);
    scale = tt_scale_make(0, 0, 5, true, TT_CHART_NUMBER);
    assert_true(scale.high > scale.low);
}

static void test_curves(void **state)
{
    (void)state;
    enum { COUNT = 1000 };
    double x[COUNT], y[COUNT], mean[COUNT], low, high;
    for (int i = 0; i < COUNT; i++) {
        x[i] = i;
        y[i] = i % 2 == 0 ? 1 : 3;
    }
    assert_true(tt_curve_smooth(y, COUNT, mean));
    assert_true(mean[0] == y[0]);
    for (int i = 100; i < COUNT; i++) {
        assert_true(fabs(mean[i] - 2) < 0.1);
    }
    y[500] = 1e9; /* one value must not press all others flat */
    assert_true(tt_curve_range(y, COUNT, &low, &high));
    assert_true(low == 1 && high >= 3 && high < 4);
    assert_int_equal(tt_curve_nearest(x, COUNT, -5), 0);
    assert_int_equal(tt_curve_nearest(x, COUNT, 499.6), 500);
    assert_int_equal(tt_curve_nearest(x, COUNT, 1e9), COUNT - 1);
    int64_t kept = tt_curve_thin(x, y, COUNT, 50);
    bool peak = false;
    assert_true(kept <= 100);
    for (int64_t i = 0; i < kept; i++) {
        peak = peak || y[i] == 1e9;
        assert_true(i == 0 || x[i] > x[i - 1]);
    }
    assert_true(peak);
}

static void test_settings(void **state)
{
    (void)state;
    tt_report_setting settings[32];
    static const char *const expected[][2] = {{"name", "\"a \\\"b\\\" <c> & d\""},
                                              {"seed", "1"},
                                              {"model.layers", "2"},
                                              {"phases.0.name", "\"one\""},
                                              {"phases.0.steps", "2"},
                                              {"phases.1.name", "\"two\""},
                                              {"phases.1.steps", "2"},
                                              {"log.interval", "1"}};
    assert_int_equal(tt_report_settings(full_recipe, settings, 32), 8);
    for (int i = 0; i < 8; i++) {
        assert_string_equal(settings[i].key, expected[i][0]);
        assert_string_equal(settings[i].value, expected[i][1]);
    }
    assert_int_equal(tt_report_settings(full_recipe, settings, 3), 3);
    assert_int_equal(tt_report_settings("", settings, 32), 0);
    assert_int_equal(tt_report_settings(NULL, settings, 32), 0);
}

/* --- the page --- */

static char *good_page(const tt_report_run *runs, int count, page_check *check)
{
    size_t size;
    char *page = page_of(runs, count, &size);
    assert_non_null(page);
    const char *problem = page_problem(page, size, check);
    if (problem != NULL) {
        fail_msg("%s", problem);
    }
    return page;
}

static void expect_part(const char *page, const char *part)
{
    if (strstr(page, part) == NULL) {
        fail_msg("the page has no \"%s\"", part);
    }
}

static void test_page_of_a_run(void **state)
{
    (void)state;
    tt_report_run *run = malloc(sizeof *run);
    page_check *check = malloc(sizeof *check);
    make_full_run("page", "");
    read_run(scratch_path("page"), run);
    char *page = good_page(run, 1, check);
    expect_part(page, "<h1>a &quot;b&quot; &lt;c&gt; &amp; d</h1>");
    expect_part(page, "prefers-color-scheme:dark");
    expect_part(page, "@media print");
    static const char *const ids[] = {"loss",       "loss-time",    "parameters", "compression",
                                      "size",       "size-ratio",   "stages",     "ranks-0",
                                      "throughput", "learning-rate"};
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        if (page_id_count(check, ids[i]) != 1) {
            fail_msg("no figure %s", ids[i]);
        }
    }
    assert_int_equal(page_id_count(check, "accuracy"), 0);
    assert_int_equal(page_id_count(check, "masked-lm-loss"), 0);
    expect_part(page, "block 0, query, link 2: rank 4 of 4 from step 0 on");
    expect_part(page, "block 0, query, link 2: rank 2 of 4 from step 3 on");
    expect_part(page, "pooler (removed)");
    /* 5000 / 900; the line of the loss from (1, 4) to (3, 3) to (4, 2.5) in a frame of 2.5 to 4. */
    expect_part(page, "<td>5.556\xC3\x97</td>");
    expect_part(page, "M62.0 36.0L432.7 192.0 618.0 270.0\"");
    expect_part(page, "&lt;c&gt; &amp; d&quot;\nseed: 1\n");
    free(page);
    tt_report_free(run);
    free(run);
    free(check);
}

/* The places of a chart's points: y from the bottom of the frame to its top. */
static void test_line_of_a_chart(void **state)
{
    (void)state;
    tt_chart chart = {.id = "c", .title = "t", .x_label = "step", .y_label = "y", .run_count = 1};
    tt_chart_series *series = tt_chart_add(&chart, "run", "", 0, 4);
    tt_chart_point(series, 0, 10);
    tt_chart_point(series, 50, NAN);
    tt_chart_point(series, 50, 15);
    tt_chart_point(series, 100, 20);
    char *text = NULL;
    size_t size;
    tt_error error;
    FILE *stream = open_memstream(&text, &size);
    expect_success(tt_chart_write(stream, &chart, &error), &error);
    fclose(stream);
    expect_part(text, "d=\"M62.0 270.0L340.0 153.0 618.0 36.0\"");
    expect_part(text, "<desc id=\"c-d\">y over step. y: from 10.00 to 20.00. </desc>");
    free(text);
}

static void test_page_of_many_runs(void **state)
{
    (void)state;
    enum { RUNS = TT_CHART_RUNS };
    tt_report_run *runs = calloc(RUNS, sizeof *runs);
    page_check *check = malloc(sizeof *check);
    for (int i = 0; i < RUNS; i++) {
        char name[16];
        snprintf(name, sizeof name, "many%d", i);
        make_full_run(name, "");
        read_run(scratch_path(name), &runs[i]);
    }
    free(runs[3].recipe);
    runs[3].recipe = NULL;
    char *page = good_page(runs, RUNS, check);
    /* Equal names do not tell runs apart; their folders do. */
    expect_part(page, "<h1>8 runs: many0, many1, many2, many3, many4, many5, many6, many7</h1>");
    expect_part(page, ">H</text>");
    expect_part(page, "What differs");
    expect_part(page, "<th scope=\"row\">model.layers</th>");
    free(page);
    for (int i = 0; i < RUNS; i++) {
        tt_report_free(&runs[i]);
    }
    free(runs);
    free(check);
}

/* Of 40 steps, on 758 wide from 178: a stage is the stretch of its steps, whatever is logged. */
static void test_bars_of_stages(void **state)
{
    (void)state;
    static const char text[] = "{\"step\": 0, \"compaction\": {\"ranks\": {\"x\": [1, 2, 1]}}}\n"
                               "{\"step\": 1, \"loss\": 1, \"stage\": \"first\"}\n"
                               "{\"step\": 10, \"loss\": 1, \"stage\": \"first\"}\n"
                               "{\"step\": 20, \"loss\": 1, \"stage\": null}\n"
                               "{\"step\": 30, \"loss\": 1, \"stage\": \"second\"}\n"
                               "{\"step\": 40, \"loss\": 1, \"stage\": null}\n";
    tt_report_run *run = malloc(sizeof *run);
    page_check *check = malloc(sizeof *check);
    tt_error error;
    expect_success(read_text(text, run, &error), &error);
    char *page = good_page(run, 1, check);
    expect_part(page, "<rect class=\"bar c0\" x=\"178.0\" y=\"6.0\" width=\"189.5\"");
    expect_part(page, "<rect class=\"bar c1\" x=\"557.0\" y=\"6.0\" width=\"189.5\"");
    free(page);
    tt_report_free(run);
    free(run);
    free(check);
}

/* Nothing but one number; all numbers null; numbers at the ends of what a double holds. */
static void test_pages_of_odd_runs(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "{\"step\": 7}\n",
        "{\"step\": 1, \"loss\": null, \"timing\": null}\n{\"step\": 2, \"loss\": null}\n",
        "{\"step\": 1, \"loss\": 1e308, \"parameters\": -1e308}\n{\"step\": 9007199254740992, "
        "\"loss\": -1e308, \"parameters\": 1e308}\n",
        "{\"step\": 0, \"loss\": 5e-324, \"parameters\": 0, \"learning_rate\": 1e-300, \"timing\": "
        "{\"elapsed_s\": -5}}\n",
        "{\"step\": 1, \"loss\": 2, \"stage\": \"<&>\", \"branch\": "
        "\"\\u0001\\ud83d\\ude00\"}\n",
        "{\"step\": 1, \"loss\": 2, \"compaction\": {\"ranks\": {\"<x>\": [1, 2], \"\": [], \"z\": "
        "[1, 9223372036854775807, 0], \"w\": 3}}}\n"
        "{\"step\": 2, \"compaction\": {\"ranks\": {\"z\": [1, 5, 5], \"new\": [1, 2, 1]}}}\n"
        "{\"step\": 2, \"compaction\": 3}\n",
    };
    tt_report_run *run = malloc(sizeof *run);
    page_check *check = malloc(sizeof *check);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        tt_error error;
        expect_success(read_text(texts[i], run, &error), &error);
        free(good_page(run, 1, check));
        tt_report_free(run);
    }
    free(run);
    free(check);
}

/* --- the command --- */

static int report(const char *first, const char *second, const char *third)
{
    char *words[] = {(char *)"report", (char *)first, (char *)second, (char *)third};
    int count = 1 + (first != NULL) + (second != NULL) + (third != NULL);
    fflush(stdout);
    int kept = dup(fileno(stdout));
    assert_non_null(freopen(scratch_path("stdout"), "w", stdout));
    int status = tt_report_main(count, words);
    fflush(stdout);
    dup2(kept, fileno(stdout));
    close(kept);
    return status;
}

static void test_command(void **state)
{
    (void)state;
    make_full_run("told", "");
    char folder[512], page[512];
    snprintf(folder, sizeof folder, "%s", scratch_path("told"));
    snprintf(page, sizeof page, "%s", scratch_path("told/report.html"));
    assert_int_equal(report(folder, NULL, NULL), TT_EXIT_DONE);
    char *said = scratch_read(scratch_path("stdout"), NULL), *first = scratch_read(page, NULL);
    assert_int_equal(strncmp(said, page, strlen(page)), 0);
    /* The same run gives the same page. */
    assert_int_equal(report(folder, "--output", scratch_path("again.html")), TT_EXIT_DONE);
    char *again = scratch_read(scratch_path("again.html"), NULL);
    assert_string_equal(again, first);
    free(said);
    free(first);
    free(again);
    assert_int_equal(report(NULL, NULL, NULL), TT_EXIT_USAGE);
    assert_int_equal(report(folder, scratch_path("nowhere"), NULL), TT_EXIT_FAILED);
    /* A page that cannot be written leaves the one before. */
    scratch_limit_files(2000);
    int status = report(folder, NULL, NULL);
    scratch_limit_files(0);
    assert_int_equal(status, TT_EXIT_FAILED);
    char *kept = scratch_read(page, NULL);
    expect_part(kept, "</html>");
    free(kept);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole_run),
        cmocka_unit_test(test_compactions),
        cmocka_unit_test(test_ways_to_name_a_run),
        cmocka_unit_test(test_lines_that_are_no_records),
        cmocka_unit_test(test_steps_done_twice),
        cmocka_unit_test(test_runs_that_are_none),
        cmocka_unit_test(test_numbers_for_people),
        cmocka_unit_test(test_escaping),
        cmocka_unit_test(test_map_names),
        cmocka_unit_test(test_ticks_are_round),
        cmocka_unit_test(test_curves),
        cmocka_unit_test(test_settings),
        cmocka_unit_test(test_page_of_a_run),
        cmocka_unit_test(test_bars_of_stages),
        cmocka_unit_test(test_line_of_a_chart),
        cmocka_unit_test(test_page_of_many_runs),
        cmocka_unit_test(test_pages_of_odd_runs),
        cmocka_unit_test(test_command),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
