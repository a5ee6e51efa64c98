/* Files of a task to rows: what is read, what is refused, and that a loader gives these rows as it
 * gives those of shards. */
#include "data/entailment.h"
#include "data/loader.h"
#include "data/task.h"
#include "data/tsv.h"
#include "support/scratch.h"

enum { LENGTH = 12 };

static const char vocabulary[] =
    "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\nc\nd\ne\nf\n##g\n.\n\"\n";
enum { PAD, UNK, CLS, SEP, MASK, A, B, C, D, E, F, G, DOT, QUOTE };

static tt_tokenizer *tokenizer;

static int set_up(void **state)
{
    tt_error error;
    if (scratch_setup(state) != 0) {
        return -1;
    }
    scratch_write(scratch_path("vocab.txt"), vocabulary, sizeof vocabulary - 1);
    return tt_tokenizer_open(scratch_path("vocab.txt"), &tokenizer, &error) == TT_OK ? 0 : -1;
}

static int tear_down(void **state)
{
    tt_tokenizer_close(&tokenizer);
    return scratch_teardown(state);
}

static tt_status read_bytes(const char *bytes, size_t size, tt_task_rows *rows, tt_error *error)
{
    const char *path = scratch_path("task.tsv");
    scratch_write(path, bytes, size);
    return tt_task_read(TT_TASK_MNLI, &path, 1, tokenizer, LENGTH, rows, error);
}

static tt_task_rows read_text(const char *text)
{
    tt_task_rows rows;
    tt_error error;
    expect_success(read_bytes(text, strlen(text), &rows, &error), &error);
    return rows;
}

static void refuse_bytes(const char *bytes, size_t size, const char *fragment)
{
    tt_task_rows rows;
    tt_error error = {.message = ""};
    tt_status status = read_bytes(bytes, size, &rows, &error);
    tt_task_free(&rows);
    expect_failure(status, &error, fragment);
    assert_non_null(strstr(error.message, "task.tsv"));
}

static void refuse(const char *text, const char *fragment)
{
    refuse_bytes(text, strlen(text), fragment);
}

static void expect_row(const tt_task_rows *rows, int64_t row, const int32_t *ids, int count,
                       int second, int label)
{
    const tt_shard *shard = rows->shards[0];
    for (int i = 0; i < LENGTH; i++) {
        int64_t at = row * LENGTH + i;
        assert_int_equal(shard->input_ids[at], i < count ? ids[i] : PAD);
        assert_int_equal(shard->attention_mask[at], i < count);
        assert_int_equal(shard->segment_ids[at], i >= second && i < count);
    }
    assert_int_equal(shard->next_sentence_labels[row], label);
}

/* --- what is read --- */

static void test_pairs_become_rows(void **state)
{
    (void)state;
    tt_task_rows rows = read_text("sentence1\tsentence2\tgold_label\n"
                                  "a b\tc\tentailment\n"
                                  "A \xC3\x81.\tcg\tneutral\n"
                                  "\td\tcontradiction\n");
    assert_int_equal(rows.rows, 3);
    assert_int_equal(rows.unlabelled, 0);
    assert_int_equal(rows.cut, 0);
    expect_row(&rows, 0, (int32_t[]){CLS, A, B, SEP, C, SEP}, 6, 4, 0);
    expect_row(&rows, 1, (int32_t[]){CLS, A, A, DOT, SEP, C, G, SEP}, 8, 5, 1);
    expect_row(&rows, 2, (int32_t[]){CLS, SEP, D, SEP}, 4, 2, 2);
    tt_task_free(&rows);
}

/* The original layouts: columns are found by their names, wherever they stand. */
static void test_columns_by_name(void **state)
{
    (void)state;
    tt_task_rows rows =
        read_text("index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\t"
                  "sentence1_parse\tsentence2_parse\tsentence1\tsentence2\tlabel1\tgold_label\n"
                  "0\t1\t1n\tfiction\tf\tf\tf\tf\ta\tb\tneutral\tneutral\n");
    expect_row(&rows, 0, (int32_t[]){CLS, A, SEP, B, SEP}, 5, 3, 1);
    tt_task_free(&rows);
    rows = read_text("gold_label\tsentence2\tsentence1\n"
                     "entailment\ta\tb\n");
    expect_row(&rows, 0, (int32_t[]){CLS, B, SEP, A, SEP}, 5, 3, 0);
    tt_task_free(&rows);
}

static void test_quotation_marks_are_text(void **state)
{
    (void)state;
    tt_task_rows rows = read_text("sentence1\tsentence2\tgold_label\n"
                                  "\"a\tb\tneutral\n"
                                  "c\"\t\"d\"\tneutral\n");
    assert_int_equal(rows.rows, 2);
    expect_row(&rows, 0, (int32_t[]){CLS, QUOTE, A, SEP, B, SEP}, 6, 4, 1);
    expect_row(&rows, 1, (int32_t[]){CLS, C, QUOTE, SEP, QUOTE, D, QUOTE, SEP}, 8, 4, 1);
    tt_task_free(&rows);
}

static void test_line_ends_and_marks(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "\xEF\xBB\xBFsentence1\tsentence2\tgold_label\r\na\tb\tneutral\r\nb\ta\tneutral\r\n",
        "sentence1\tsentence2\tgold_label\na\tb\tneutral\nb\ta\tneutral",
        "sentence1\tsentence2\tgold_label\r\na\tb\tneutral\nb\ta\tneutral\r\n",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        tt_task_rows rows = read_text(texts[i]);
        assert_int_equal(rows.rows, 2);
        expect_row(&rows, 1, (int32_t[]){CLS, B, SEP, A, SEP}, 5, 3, 1);
        tt_task_free(&rows);
    }
}

static void test_rows_without_a_class_are_left_out(void **state)
{
    (void)state;
    tt_task_rows rows = read_text("sentence1\tsentence2\tgold_label\n"
                                  "a\tb\t-\nb\tc\tneutral\nc\td\t-\n");
    assert_int_equal(rows.rows, 1);
    assert_int_equal(rows.unlabelled, 2);
    expect_row(&rows, 0, (int32_t[]){CLS, B, SEP, C, SEP}, 5, 3, 1);
    tt_task_free(&rows);
    refuse("sentence1\tsentence2\tgold_label\na\tb\t-\n", "expected rows with a class, found none");
}

/* Room for LENGTH - 3 tokens: they go from the end of the longer, of the second at a tie. */
static void test_long_pairs_are_cut(void **state)
{
    (void)state;
    tt_task_rows rows = read_text("sentence1\tsentence2\tgold_label\n"
                                  "a b c d e f a b c d e f\ta b\tneutral\n"
                                  "a b\ta b c d e f a b c d\tneutral\n"
                                  "a b c d e f a b\tf e d c b a a b c\tneutral\n"
                                  "a b c d e\td c b a\tneutral\n");
    assert_int_equal(rows.cut, 3);
    expect_row(&rows, 0, (int32_t[]){CLS, A, B, C, D, E, F, A, SEP, A, B, SEP}, 12, 9, 1);
    expect_row(&rows, 1, (int32_t[]){CLS, A, B, SEP, A, B, C, D, E, F, A, SEP}, 12, 4, 1);
    expect_row(&rows, 2, (int32_t[]){CLS, A, B, C, D, E, SEP, F, E, D, C, SEP}, 12, 7, 1);
    expect_row(&rows, 3, (int32_t[]){CLS, A, B, C, D, E, SEP, D, C, B, A, SEP}, 12, 7, 1);
    tt_task_free(&rows);
}

/* --- what is refused --- */

static void test_hostile_files(void **state)
{
    (void)state;
    static const char header[] = "sentence1\tsentence2\tgold_label\n";
    char text[256];
    refuse("", "expected a header line, found an empty file");
    refuse("\xEF\xBB\xBF", "expected a header line, found an empty file");
    refuse("sentence1\tsentence2\na\tb\n", "expected one column named gold_label, found 0");
    refuse("sentence1\tsentence2\tgold_label\tgold_label\na\tb\t-\t-\n",
           "expected one column named gold_label, found 2");
    refuse("sentence1\tsentence2\tgold_label", "expected rows with a class, found none in 1 lines");
    static const struct {
        const char *line, *fragment;
    } lines[] = {
        {"a\tb\n", "line 3: expected 3 columns as in the header, found 2"},
        {"a\tb\tneutral\t\n", "line 3: expected 3 columns as in the header, found 4"},
        {"\n", "line 3: expected 3 columns as in the header, found 1"},
        {"a\tb\tnone\n", "line 3: expected gold_label entailment, neutral, contradiction or -, "
                         "found 'none'"},
        {"a\tb\t\n", "found ''"},
        {"a\tb\tNeutral\n", "found 'Neutral'"},
        {"a\xFF\tb\tneutral\n", "line 3: expected UTF-8 text"},
        {"a\tb\tneutral\xC3", "line 3: expected UTF-8 text"},
        {"\xED\xA0\x80\tb\tneutral\n", "line 3: expected UTF-8 text"},
    };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        snprintf(text, sizeof text, "%sa\tb\tneutral\n%s", header, lines[i].line);
        refuse(text, lines[i].fragment);
    }
    int length = snprintf(text, sizeof text, "%sa\tb*c\tneutral\n", header);
    *strchr(text, '*') = '\0';
    refuse_bytes(text, (size_t)length, "line 2: expected UTF-8 text");
}

/* Any cut of a file is read or refused, never more. */
static void test_every_cut(void **state)
{
    (void)state;
    static const char text[] = "\xEF\xBB\xBFsentence1\tsentence2\tgold_label\r\n"
                               "\xC3\xA4 b\tc\tneutral\r\nd\te\t-\r\na\tb\tentailment\r\n";
    for (size_t cut = 0; cut < sizeof text; cut++) {
        tt_task_rows rows;
        tt_error error = {.message = ""};
        tt_status status = read_bytes(text, cut, &rows, &error);
        if (status == TT_OK) {
            assert_in_range(rows.rows, 1, 2);
        } else {
            assert_null(strchr(error.message, '\n'));
        }
        tt_task_free(&rows);
    }
}

static void test_missing_files(void **state)
{
    (void)state;
    tt_task_rows rows;
    tt_error error;
    const char *path = scratch_path("nothing.tsv");
    expect_failure(tt_task_read(TT_TASK_MNLI, &path, 1, tokenizer, LENGTH, &rows, &error), &error,
                   "No such file");
    tt_task_free(&rows);
    expect_failure(tt_task_read(TT_TASK_MNLI, NULL, 0, tokenizer, LENGTH, &rows, &error), &error,
                   "no file of a task");
    tt_task_free(&rows);
}

/* --- a loader over such rows --- */

enum { ROWS = 37, BATCH = 8, STEPS = 14 };

/* Two files, whose sentences tell the number of the row. */
static tt_task_rows numbered_rows(void)
{
    static const char *paths[2];
    int row = 0;
    for (int file = 0; file < 2; file++) {
        char text[2048] = "sentence1\tsentence2\tgold_label\n";
        int end = file == 0 ? 12 : ROWS;
        for (; row < end; row++) {
            size_t used = strlen(text);
            snprintf(text + used, sizeof text - used, "%c %c\ta\t%s\n", 'a' + row / 6 % 6,
                     'a' + row % 6, row % 2 ? "neutral" : "entailment");
        }
        paths[file] = scratch_path(file == 0 ? "first.tsv" : "second.tsv");
        scratch_write(paths[file], text, strlen(text));
    }
    tt_task_rows rows;
    tt_error error;
    expect_success(tt_task_read(TT_TASK_MNLI, paths, 2, tokenizer, LENGTH, &rows, &error), &error);
    assert_int_equal(rows.rows, ROWS);
    return rows;
}

static tt_loader_options loader_options(const tt_row_source *source)
{
    return (tt_loader_options){.source = source,
                               .sequence_length = LENGTH,
                               .vocabulary_size = QUOTE + 1,
                               .seed = 5,
                               .global_batch = BATCH,
                               .world_size = 1,
                               .shuffle = true};
}

/* Ids and labels of steps [first, end), as `world` ranks together see them. */
static void read_stream(tt_loader_options options, int world, int first, int end, int32_t *ids,
                        int32_t *labels)
{
    options.world_size = world;
    options.first_step = first;
    for (options.rank = 0; options.rank < world; options.rank++) {
        tt_loader *loader;
        tt_error error;
        expect_success(tt_loader_open(&options, &loader, &error), &error);
        for (int step = first; step < end; step++) {
            tt_batch *batch;
            expect_success(tt_loader_next(loader, &batch, &error), &error);
            assert_non_null(batch);
            assert_int_equal(batch->masked_count, 0);
            assert_int_equal(batch->max_predictions, 0);
            for (int64_t row = 0; row < batch->rows; row++) {
                int64_t sample = batch->first_sample + row;
                memcpy(ids + sample * LENGTH, batch->input_ids + row * LENGTH,
                       LENGTH * sizeof *ids);
                labels[sample] = batch->next_sentence_labels[row];
            }
        }
        tt_loader_close(&loader);
    }
}

static void test_loader_order_ranks_and_resume(void **state)
{
    (void)state;
    static int32_t whole[STEPS * BATCH * LENGTH], ids[STEPS * BATCH * LENGTH];
    static int32_t whole_labels[STEPS * BATCH], labels[STEPS * BATCH];
    tt_task_rows rows = numbered_rows();
    tt_row_source source = tt_task_source(&rows);
    tt_loader_options options = loader_options(&source);
    read_stream(options, 1, 0, STEPS, whole, whole_labels);
    bool moved = false;
    for (int epoch = 0; epoch < STEPS * BATCH / ROWS; epoch++) {
        bool seen[ROWS] = {false};
        for (int i = 0; i < ROWS; i++) {
            const int32_t *row = whole + (ptrdiff_t)(epoch * ROWS + i) * LENGTH;
            /* 36 numbers for 37 rows: the last one looks like the first. */
            int number = (row[1] - A) * 6 + row[2] - A;
            number = number == 0 && seen[0] ? ROWS - 1 : number;
            assert_in_range(number, 0, ROWS - 1);
            assert_false(seen[number]);
            seen[number] = true;
            moved = moved || number != i;
            assert_int_equal(whole_labels[epoch * ROWS + i], number % 2);
        }
    }
    assert_true(moved);
    for (int world = 1; world <= 4; world *= 2) {
        for (int first = 0; first < STEPS; first += 5) {
            memset(ids, -1, sizeof ids);
            read_stream(options, world, first, STEPS, ids, labels);
            ptrdiff_t from = (ptrdiff_t)first * BATCH;
            assert_memory_equal(ids + from * LENGTH, whole + from * LENGTH,
                                (size_t)((ptrdiff_t)STEPS * BATCH - from) * LENGTH * sizeof *ids);
            assert_memory_equal(labels + from, whole_labels + from,
                                (size_t)((ptrdiff_t)STEPS * BATCH - from) * sizeof *labels);
        }
    }
    tt_task_free(&rows);
}

/* Validation: every row once, in order, then rows that count nothing. */
static void test_loader_without_shuffling(void **state)
{
    (void)state;
    static int32_t ids[ROWS * 2 * LENGTH], labels[ROWS * 2];
    tt_task_rows rows = numbered_rows();
    tt_row_source source = tt_task_source(&rows);
    tt_loader_options options = loader_options(&source);
    options.shuffle = false;
    int steps = (ROWS + BATCH - 1) / BATCH;
    read_stream(options, 2, 0, steps, ids, labels);
    for (int i = 0; i < steps * BATCH; i++) {
        assert_int_equal(labels[i], i < ROWS ? i % 2 : -1);
        assert_int_equal(ids[(ptrdiff_t)i * LENGTH], i < ROWS ? CLS : PAD);
    }
    tt_task_free(&rows);
}

static void test_loader_fingerprint_knows_the_content(void **state)
{
    (void)state;
    uint64_t fingerprints[2];
    for (int i = 0; i < 2; i++) {
        tt_task_rows rows = read_text(i == 0 ? "sentence1\tsentence2\tgold_label\na\tb\tneutral\n"
                                             : "sentence1\tsentence2\tgold_label\na\tc\tneutral\n");
        tt_row_source source = tt_task_source(&rows);
        tt_loader_options options = loader_options(&source);
        options.global_batch = 1;
        tt_loader *loader;
        tt_error error;
        expect_success(tt_loader_open(&options, &loader, &error), &error);
        fingerprints[i] = tt_loader_fingerprint(loader);
        tt_loader_close(&loader);
        tt_task_free(&rows);
    }
    assert_true(fingerprints[0] != fingerprints[1]);
}

/* --- the made-up task --- */

/* In every class, what the second sentence alone says is equally likely. */
static void test_entailment_is_balanced(void **state)
{
    (void)state;
    enum { COUNT = 6000 };
    tt_error error;
    expect_success(tt_entailment_write(COUNT, 10, 3, scratch_path("entailment"), &error), &error);
    tt_tsv tsv;
    expect_success(tt_tsv_open(scratch_path("entailment/train.tsv"), &tsv, &error), &error);
    int counts[3] = {0}, noon[3] = {0}, lines = 0;
    for (bool more = true;;) {
        expect_success(tt_tsv_next(&tsv, &more, &error), &error);
        if (!more) {
            break;
        }
        lines++;
        int label = tsv.fields[2].text[0] == 'e' ? 0 : tsv.fields[2].text[0] == 'n' ? 1 : 2;
        counts[label]++;
        noon[label] += tsv.fields[1].length == strlen("the hour was noon .") &&
                       memcmp(tsv.fields[1].text, "the hour was noon", 17) == 0;
    }
    tt_tsv_close(&tsv);
    assert_int_equal(lines, COUNT);
    for (int label = 0; label < 3; label++) {
        assert_in_range(counts[label], COUNT / 3 - 200, COUNT / 3 + 200);
        assert_in_range(noon[label], COUNT / 48 - 50, COUNT / 48 + 50);
    }
}

/* Its vocabulary has every word of it. */
static void test_entailment_has_no_unknown_word(void **state)
{
    (void)state;
    tt_error error;
    tt_tokenizer *own;
    tt_task_rows rows;
    expect_success(tt_entailment_write(200, 10, 3, scratch_path("entailment"), &error), &error);
    expect_success(tt_tokenizer_open(scratch_path("entailment/vocab.txt"), &own, &error), &error);
    const char *path = scratch_path("entailment/train.tsv");
    expect_success(tt_task_read(TT_TASK_MNLI, &path, 1, own, 24, &rows, &error), &error);
    assert_int_equal(rows.cut, 0);
    for (int64_t i = 0; i < rows.rows * 24; i++) {
        assert_int_not_equal(rows.shards[0]->input_ids[i], tt_tokenizer_special(own).unknown);
    }
    tt_task_free(&rows);
    tt_tokenizer_close(&own);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pairs_become_rows),
        cmocka_unit_test(test_columns_by_name),
        cmocka_unit_test(test_quotation_marks_are_text),
        cmocka_unit_test(test_line_ends_and_marks),
        cmocka_unit_test(test_rows_without_a_class_are_left_out),
        cmocka_unit_test(test_long_pairs_are_cut),
        cmocka_unit_test(test_hostile_files),
        cmocka_unit_test(test_every_cut),
        cmocka_unit_test(test_missing_files),
        cmocka_unit_test(test_loader_order_ranks_and_resume),
        cmocka_unit_test(test_loader_without_shuffling),
        cmocka_unit_test(test_loader_fingerprint_knows_the_content),
        cmocka_unit_test(test_entailment_is_balanced),
        cmocka_unit_test(test_entailment_has_no_unknown_word),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
