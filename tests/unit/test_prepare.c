/* From documents to shards: sentences, pairs, splits, and what is left behind when something fails.
 */
#include "support/scratch.h"

#include "data/corpus_synthetic.h"
#include "data/prepare.h"
#include "data/sentence.h"
#include "data/sentence_pairs.h"
#include "launch/command_line.h"
#include "launch/prepare.h"

#include <fcntl.h>

/* Sentences */

static void expect_sentences(const char *text, const char *expected)
{
    char found[1024] = "";
    size_t left = strlen(text);
    while (left > 0) {
        size_t length = tt_sentence_length(text, left);
        assert_true(length > 0 && length <= left);
        strncat(found, text, length);
        strcat(found, "|");
        while (length < left && text[length] == ' ') {
            length++;
        }
        text += length;
        left -= length;
    }
    assert_string_equal(found, expected);
}

static void test_sentences(void **state)
{
    (void)state;
    expect_sentences("One is here. Two is here! Is three? 4 is.",
                     "One is here.|Two is here!|Is three?|4 is.|");
    expect_sentences("He met Dr. Smith and Mrs. J. R. Jones at St. Paul. Then he left.",
                     "He met Dr. Smith and Mrs. J. R. Jones at St. Paul.|Then he left.|");
    expect_sentences("The U.S. Army, e.g. Company A, has No. 5 on p. 7. No. It has not.",
                     "The U.S. Army, e.g. Company A, has No. 5 on p. 7.|No.|It has not.|");
    expect_sentences(
        "It grew by 3.5 km. \"Why?\" he asked. (He knew.) She said: \"No.\" He went.",
        "It grew by 3.5 km.|\"Why?\" he asked.|(He knew.)|She said: \"No.\"|He went.|");
    expect_sentences(
        "He paused... Then he spoke. it goes on. \xC3\x89tienne came. \xE2\x80\x9CYes.\xE2"
        "\x80\x9D \xC3\xA9tait",
        "He paused...|Then he spoke. it goes on.|\xC3\x89tienne came.|\xE2\x80\x9CYes."
        "\xE2\x80\x9D \xC3\xA9tait|");
    expect_sentences("He was an actor . He had a role .", "He was an actor .|He had a role .|");
    expect_sentences("\xE6\x98\xAF\xE3\x80\x82\xE5\x90\xA6\xE3\x80\x82",
                     "\xE6\x98\xAF\xE3\x80\x82|\xE5\x90\xA6\xE3\x80\x82|");
    expect_sentences(".", ".|");
    expect_sentences("", "");
}

static void test_long_sentences(void **state)
{
    (void)state;
    enum { SIZE = 50001 };
    char *text = malloc(SIZE + 1);
    for (int kind = 0; kind < 3; kind++) {
        for (int i = 0; i < SIZE; i++) {
            const char *pattern = kind == 0 ? "aaaa" : kind == 1 ? "abc " : "\xE2\x82\xAC";
            text[i] = pattern[i % (kind == 2 ? 3 : 4)];
        }
        size_t at = 0;
        while (at < SIZE) {
            size_t length = tt_sentence_length(text + at, SIZE - at);
            assert_true(length > 0 && length <= TT_SENTENCE_LIMIT);
            at += length;
            assert_true(kind != 1 || at == SIZE || text[at] == ' ');
            assert_true(kind != 2 || ((unsigned char)text[at] & 0xC0) != 0x80 || at == SIZE);
            while (at < SIZE && text[at] == ' ') {
                at++;
            }
        }
    }
    free(text);
}

/* Pairs. A token's id says where it stands: document * 1000 + place in the document, from 10 on. */

enum { FIRST_ID = 10, DOCUMENT_STEP = 1000 };

typedef struct {
    const tt_token_pool *pool;
    int64_t document;
    int sequence_length;
    int pairs, random_next, short_rows;
    uint8_t *used; /* per place of the document: appeared as its own text */
} pair_checker;

static tt_status check_pair(void *user, const tt_sentence_pair *pair, tt_error *error)
{
    pair_checker *checker = user;
    (void)error;
    assert_true(pair->length >= 5 && pair->length <= checker->sequence_length);
    assert_int_equal(pair->ids[0], 2);
    assert_int_equal(pair->ids[pair->length - 1], 3);
    int second = 1;
    while (pair->ids[second] != 3) {
        assert_int_equal(pair->segments[second], 0);
        int place = pair->ids[second] - FIRST_ID;
        assert_int_equal(place / DOCUMENT_STEP, checker->document);
        assert_true(second == 1 || pair->ids[second] == pair->ids[second - 1] + 1);
        checker->used[place % DOCUMENT_STEP] = 1;
        second++;
    }
    assert_true(second > 1);
    assert_int_equal(pair->segments[second], 0);
    assert_int_equal(pair->token_bits[second], TT_TOKEN_NEVER_MASKED);
    second++;
    assert_true(second < pair->length - 1);
    int document = (pair->ids[second] - FIRST_ID) / DOCUMENT_STEP;
    for (int i = second; i < pair->length - 1; i++) {
        assert_true(i == second || pair->ids[i] == pair->ids[i - 1] + 1);
        assert_int_equal((pair->ids[i] - FIRST_ID) / DOCUMENT_STEP, document);
        assert_int_equal(pair->segments[i], 1);
        assert_int_equal(pair->token_bits[i], 0);
        if (pair->next_sentence_label == 0) {
            checker->used[(pair->ids[i] - FIRST_ID) % DOCUMENT_STEP] = 1;
        }
    }
    assert_int_equal(pair->next_sentence_label, document != checker->document);
    if (pair->next_sentence_label == 0) {
        assert_true(pair->ids[second] > pair->ids[second - 2]);
    }
    checker->pairs++;
    checker->random_next += pair->next_sentence_label;
    checker->short_rows += pair->length < checker->sequence_length / 2;
    return TT_OK;
}

static void fill_pool(tt_token_pool *pool, int documents, int sentences, int tokens)
{
    tt_error error;
    int32_t sentence[64];
    for (int d = 0; d < documents; d++) {
        int place = 0;
        for (int s = 0; s < sentences; s++) {
            int count = 1 + (s * 7 + d) % tokens;
            for (int t = 0; t < count; t++) {
                sentence[t] = FIRST_ID + d * DOCUMENT_STEP + place++;
            }
            expect_success(tt_token_pool_add_sentence(pool, sentence, count, &error), &error);
        }
        expect_success(tt_token_pool_end_document(pool, &error), &error);
        expect_success(tt_token_pool_end_document(pool, &error), &error);
    }
    assert_int_equal(pool->document_count, documents);
}

static pair_checker make_pairs(int documents, int sentences, int tokens, int sequence_length,
                               double short_probability)
{
    tt_token_pool pool = {0};
    fill_pool(&pool, documents, sentences, tokens);
    uint8_t *bits = calloc((size_t)documents * DOCUMENT_STEP + FIRST_ID, 1);
    memset(bits, TT_TOKEN_NEVER_MASKED, 5);
    const tt_sentence_pair_options options = {.sequence_length = sequence_length,
                                              .short_probability = short_probability,
                                              .special = {0, 1, 2, 3, 4},
                                              .token_bits = bits};
    pair_checker checker = {.pool = &pool, .sequence_length = sequence_length};
    checker.used = calloc(DOCUMENT_STEP, 1);
    tt_random random;
    tt_random_start(&random, 1, 2);
    for (int64_t d = 0; d < documents; d++) {
        tt_error error;
        memset(checker.used, 0, DOCUMENT_STEP);
        checker.document = d;
        expect_success(
            tt_sentence_pairs_make(&options, &pool, d, &random, check_pair, &checker, &error),
            &error);
    }
    tt_token_pool_free(&pool);
    free(bits);
    return checker;
}

static void test_pairs(void **state)
{
    (void)state;
    pair_checker checker = make_pairs(200, 40, 12, 64, 0.1);
    assert_true(checker.pairs > 1000);
    assert_true(checker.random_next > checker.pairs * 0.4);
    assert_true(checker.random_next < checker.pairs * 0.65);
    assert_true(checker.short_rows > 0 && checker.short_rows < checker.pairs * 0.2);
    free(checker.used);
    /* Sentences longer than a row, rows as short as they may be. */
    checker = make_pairs(30, 12, 60, 16, 0);
    assert_true(checker.pairs > 0);
    free(checker.used);
    checker = make_pairs(30, 12, 60, 8, 1);
    assert_true(checker.pairs > 0);
    free(checker.used);
    /* Documents of one sentence. */
    checker = make_pairs(30, 1, 20, 32, 0.1);
    assert_int_equal(checker.pairs, 30);
    assert_int_equal(checker.random_next, 30);
    free(checker.used);
}

/* Without a room to trim for, every sentence is used: those passed over for a random next are put
 * back. */
static void test_every_sentence_is_used(void **state)
{
    (void)state;
    pair_checker checker = make_pairs(1, 30, 1, 4096, 0);
    assert_int_equal(checker.random_next, 0);
    free(checker.used);
    checker = make_pairs(20, 30, 1, 32, 0);
    for (int place = 0; place < 30; place++) {
        assert_int_equal(checker.used[place], 1); /* of the last document */
    }
    free(checker.used);
}

static void test_single_document(void **state)
{
    (void)state;
    pair_checker checker = make_pairs(1, 80, 10, 64, 0.1);
    assert_true(checker.pairs > 5);
    assert_int_equal(checker.random_next, 0);
    free(checker.used);
    checker = make_pairs(1, 1, 10, 64, 0.1);
    assert_int_equal(checker.pairs, 0);
    free(checker.used);
}

/* Shards */

static char model_path[512], corpus_path[512];

static int setup(void **state)
{
    if (scratch_setup(state) != 0) {
        return -1;
    }
    tt_error error;
    int64_t bytes = 0;
    snprintf(corpus_path, sizeof corpus_path, "%s/corpus.txt", scratch_folder);
    snprintf(model_path, sizeof model_path, "%s/test.model", scratch_folder);
    expect_success(tt_synthetic_write(300, 9, corpus_path, &bytes, &error), &error);
    const char *paths[] = {corpus_path};
    const tt_corpus_options options = {.paths = paths, .path_count = 1};
    tt_corpus *corpus = NULL;
    tt_prepare_summary summary;
    tt_tokenizer_options tokenizer = tt_tokenizer_default_options();
    tokenizer.vocabulary_size = 600;
    expect_success(tt_corpus_open(&options, &corpus, &error), &error);
    expect_success(
        tt_prepare_tokenizer(corpus, &tokenizer, model_path, NULL, NULL, &summary, &error), &error);
    assert_int_equal(summary.documents, 300);
    tt_corpus_close(&corpus);
    return 0;
}

static tt_prepare_options small_options(const char *output)
{
    tt_prepare_options options = tt_prepare_default_options();
    options.output = output;
    options.tokenizer_path = model_path;
    options.source = "corpus.txt";
    options.sequence_length = 64;
    options.max_predictions = 10;
    return options;
}

static tt_status prepare_file(const char *path, tt_corpus_format format,
                              const tt_prepare_options *options, tt_prepare_summary *summary,
                              tt_error *error)
{
    tt_tokenizer *tokenizer = NULL;
    tt_corpus *corpus = NULL;
    const tt_corpus_options corpus_options = {.format = format, .paths = &path, .path_count = 1};
    expect_success(tt_tokenizer_open(model_path, &tokenizer, error), error);
    expect_success(tt_corpus_open(&corpus_options, &corpus, error), error);
    tt_status status = tt_prepare_shards(corpus, tokenizer, options, NULL, NULL, summary, error);
    tt_tokenizer_close(&tokenizer);
    tt_corpus_close(&corpus);
    return status;
}

static tt_status prepare(const tt_prepare_options *options, tt_prepare_summary *summary,
                         tt_error *error)
{
    return prepare_file(corpus_path, TT_CORPUS_AUTOMATIC, options, summary, error);
}

static int count_entries(const char *folder)
{
    DIR *directory = opendir(folder);
    if (directory == NULL) {
        return 0;
    }
    int count = 0;
    for (struct dirent *entry = readdir(directory); entry != NULL; entry = readdir(directory)) {
        count += entry->d_name[0] != '.';
    }
    closedir(directory);
    return count;
}

static tt_shard *read_shard(const char *folder, const char *name)
{
    char path[1024];
    tt_shard *shard = NULL;
    tt_error error;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    expect_success(tt_shard_read(path, NULL, &shard, &error), &error);
    return shard;
}

static void test_dynamic_shards(void **state)
{
    (void)state;
    const char *folder = scratch_path("dynamic");
    tt_prepare_options options = small_options(folder);
    options.validation_fraction = 0.1;
    tt_prepare_summary summary;
    tt_error error;
    expect_success(prepare(&options, &summary, &error), &error);
    assert_int_equal(summary.documents, 300);
    assert_true(summary.validation_documents > 10 && summary.validation_documents < 60);
    assert_int_equal(summary.train_shards, 1);
    assert_int_equal(summary.validation_shards, 1);
    assert_int_equal(count_entries(folder), 3);
    tt_shard *train = read_shard(folder, "train_00000.hdf5");
    tt_shard *validation = read_shard(folder, "validation_00000.hdf5");
    assert_int_equal(train->info.rows, summary.train_rows);
    assert_int_equal(validation->info.rows, summary.validation_rows);
    assert_int_equal(train->info.masking, TT_MASKING_DYNAMIC);
    assert_int_equal(train->info.sequence_length, 64);
    assert_int_equal(train->info.vocabulary_size, 600);
    assert_string_equal(train->info.source, "corpus.txt");
    char copy_path[600];
    snprintf(copy_path, sizeof copy_path, "%s/tokenizer.model", folder);
    tt_tokenizer *tokenizer = NULL;
    expect_success(tt_tokenizer_open(copy_path, &tokenizer, &error), &error);
    assert_true(tt_tokenizer_hash(tokenizer) == train->info.tokenizer_hash);
    assert_true(tt_tokenizer_vocabulary_hash(tokenizer) == train->info.vocabulary_hash);
    const uint8_t *bits = tt_tokenizer_token_bits(tokenizer);
    int64_t random_next = 0;
    for (int64_t row = 0; row < train->info.rows; row++) {
        random_next += train->next_sentence_labels[row];
        for (int64_t i = row * 64; i < row * 64 + 64; i++) {
            assert_true(!train->attention_mask[i] ||
                        train->special_tokens_mask[i] == bits[train->input_ids[i]]);
        }
    }
    assert_true(random_next > train->info.rows * 0.4 && random_next < train->info.rows * 0.7);
    tt_tokenizer_close(&tokenizer);
    tt_shard_free(&train);
    tt_shard_free(&validation);
}

static void test_static_shards(void **state)
{
    (void)state;
    const char *folder = scratch_path("static");
    tt_prepare_options options = small_options(folder);
    options.masking = TT_MASKING_STATIC;
    options.duplicates = 3;
    tt_prepare_summary summary;
    tt_error error;
    expect_success(prepare(&options, &summary, &error), &error);
    tt_shard *shard = read_shard(folder, "train_00000.hdf5");
    assert_int_equal(shard->info.max_predictions, 10);
    assert_int_equal(shard->info.masking, TT_MASKING_STATIC);
    int64_t masked = 0, masks = 0, tokens = 0;
    for (int64_t row = 0; row < shard->info.rows; row++) {
        for (int i = 0; i < 10 && shard->masked_positions[row * 10 + i] != 0; i++) {
            int position = shard->masked_positions[row * 10 + i];
            masked++;
            masks += shard->input_ids[row * 64 + position] == shard->info.special.mask;
            assert_true(shard->masked_ids[row * 10 + i] > 4);
        }
        for (int i = 0; i < 64; i++) {
            tokens += shard->attention_mask[row * 64 + i];
        }
    }
    assert_int_equal(masked, summary.masked_tokens);
    assert_int_equal(tokens, summary.row_tokens);
    assert_true(masks > masked * 0.75 && masks < masked * 0.85);
    tt_shard_free(&shard);
    tt_prepare_summary once;
    options.duplicates = 1;
    options.output = scratch_path("static_once");
    expect_success(prepare(&options, &once, &error), &error);
    assert_true(summary.train_rows > 2.8 * (double)once.train_rows);
    assert_true(summary.train_rows < 3.2 * (double)once.train_rows);
}

/* Rows of the same documents whatever the buffer; few documents a buffer keep the memory small. */
static void test_small_buffer(void **state)
{
    (void)state;
    tt_prepare_options options = small_options(scratch_path("large_buffer"));
    tt_prepare_summary large, small;
    tt_error error;
    expect_success(prepare(&options, &large, &error), &error);
    options.output = scratch_path("small_buffer");
    options.buffer_tokens = 1000;
    expect_success(prepare(&options, &small, &error), &error);
    assert_int_equal(small.tokens, large.tokens);
    assert_true(small.buffer_bytes < large.buffer_bytes / 4);
    assert_true(small.train_rows > large.train_rows * 0.9);
    options.output = scratch_path("tiny_buffer");
    options.buffer_tokens = 1;
    expect_success(prepare(&options, &small, &error), &error);
    assert_int_equal(small.random_next_rows, 0);
}

static void expect_same_file(const char *first_folder, const char *second_folder, const char *name)
{
    tt_shard *first = read_shard(first_folder, name);
    tt_shard *second = read_shard(second_folder, name);
    assert_int_equal(first->info.rows, second->info.rows);
    size_t places = (size_t)first->info.rows * (size_t)first->info.sequence_length;
    assert_memory_equal(first->input_ids, second->input_ids, places * sizeof(int32_t));
    assert_memory_equal(first->segment_ids, second->segment_ids, places);
    assert_memory_equal(first->next_sentence_labels, second->next_sentence_labels,
                        (size_t)first->info.rows);
    tt_shard_free(&first);
    tt_shard_free(&second);
}

static void test_same_seed_same_shards(void **state)
{
    (void)state;
    tt_prepare_options options = small_options(scratch_path("seed_a"));
    options.masking = TT_MASKING_STATIC;
    options.validation_fraction = 0.2;
    options.buffer_tokens = 8000;
    tt_prepare_summary summary, again, other;
    tt_error error;
    expect_success(prepare(&options, &summary, &error), &error);
    options.output = scratch_path("seed_b");
    expect_success(prepare(&options, &again, &error), &error);
    assert_memory_equal(&summary, &again, sizeof summary);
    expect_same_file(scratch_path("seed_a"), scratch_path("seed_b"), "train_00000.hdf5");
    expect_same_file(scratch_path("seed_a"), scratch_path("seed_b"), "validation_00000.hdf5");
    options.output = scratch_path("seed_c");
    options.seed = 2;
    expect_success(prepare(&options, &other, &error), &error);
    assert_true(other.row_tokens != summary.row_tokens);
}

static void test_numbers_of_shards(void **state)
{
    (void)state;
    const char *folder = scratch_path("shards");
    tt_prepare_options options = small_options(folder);
    options.shards = 7;
    tt_prepare_summary summary;
    tt_error error;
    expect_success(prepare(&options, &summary, &error), &error);
    assert_int_equal(summary.train_shards, 7);
    assert_int_equal(count_entries(folder), 8);
    for (int i = 0; i < 7; i++) {
        char name[32];
        snprintf(name, sizeof name, "train_%05d.hdf5", i);
        tt_shard *shard = read_shard(folder, name);
        assert_true(shard->info.rows > summary.train_rows / 7 - 10);
        assert_true(shard->info.rows < summary.train_rows / 7 + 10);
        tt_shard_free(&shard);
    }
    options.shards = 0;
    options.rows_per_shard = 100;
    options.overwrite = true;
    expect_success(prepare(&options, &summary, &error), &error);
    assert_int_equal(summary.train_shards, (summary.train_rows + 99) / 100);
    assert_int_equal(count_entries(folder), summary.train_shards + 1);
}

static void expect_nothing_written(const tt_prepare_options *options, const char *path,
                                   tt_corpus_format format, const char *fragment)
{
    tt_prepare_summary summary;
    tt_error error;
    expect_failure(prepare_file(path, format, options, &summary, &error), &error, fragment);
    assert_int_equal(count_entries(options->output), 0);
}

static void test_failures_leave_nothing(void **state)
{
    (void)state;
    const char *folder = scratch_path("nothing");
    const char *path = scratch_path("input");
    tt_prepare_options options = small_options(folder);
    scratch_write(path, "\n", 1);
    expect_nothing_written(&options, path, TT_CORPUS_BLOCKS, "found no document");
    options.shards = 301;
    expect_nothing_written(&options, corpus_path, TT_CORPUS_BLOCKS,
                           "at least as many training documents as shards (301), found 300");
    options.shards = 513;
    expect_nothing_written(&options, corpus_path, TT_CORPUS_BLOCKS, "at most 512, found 513");
    options.shards = 0;
    options.validation_fraction = 1e-6;
    expect_nothing_written(&options, corpus_path, TT_CORPUS_BLOCKS,
                           "0 of 300 documents fell to validation");
    options.validation_fraction = 0;
    options.rows_per_shard = 20;
    static const char broken[] =
        "<mediawiki><page><title>A</title><ns>0</ns><revision><text>A text it is. It goes on. And "
        "on.</text></revision></page><page><title>B</title><ns>0</ns><revision><text>More text it "
        "is. It goes on.</text></revision></page><page></mediawiki>";
    scratch_write(path, broken, sizeof broken - 1);
    expect_nothing_written(&options, path, TT_CORPUS_WIKIPEDIA, "line 1");
    options = small_options(folder);
    options.sequence_length = 7;
    expect_nothing_written(&options, corpus_path, TT_CORPUS_BLOCKS, "sequence length");
    options = small_options(folder);
    options.masking = TT_MASKING_STATIC;
    options.mask_probability = 2;
    expect_nothing_written(&options, corpus_path, TT_CORPUS_BLOCKS, "probability");
    options = small_options(folder);
    options.duplicates = 0;
    expect_nothing_written(&options, corpus_path, TT_CORPUS_BLOCKS, "duplicates");
}

static void test_existing_shards(void **state)
{
    (void)state;
    const char *folder = scratch_path("existing");
    tt_prepare_options options = small_options(folder);
    options.validation_fraction = 0.2;
    options.rows_per_shard = 200;
    tt_prepare_summary summary;
    tt_error error;
    expect_success(prepare(&options, &summary, &error), &error);
    int files = count_entries(folder);
    options.validation_fraction = 0;
    options.rows_per_shard = 1000000;
    expect_failure(prepare(&options, &summary, &error), &error,
                   "without train shards, found train_");
    assert_int_equal(count_entries(folder), files);
    options.overwrite = true;
    options.shards = 301;
    expect_failure(prepare(&options, &summary, &error), &error, "as many training documents");
    assert_int_equal(count_entries(folder), files); /* the old ones stay until there are new ones */
    options.shards = 0;
    expect_success(prepare(&options, &summary, &error), &error);
    assert_int_equal(count_entries(folder), 2);
    /* What a killed run left is no obstacle. */
    char leftover[1024];
    snprintf(leftover, sizeof leftover, "%s/incomplete", folder);
    assert_int_equal(mkdir(leftover, 0777), 0);
    snprintf(leftover, sizeof leftover, "%s/incomplete/train_00003.hdf5.tmp", folder);
    scratch_write(leftover, "x", 1);
    expect_success(prepare(&options, &summary, &error), &error);
    assert_int_equal(count_entries(folder), 2);
}

static void test_text_only(void **state)
{
    (void)state;
    const char *path = corpus_path;
    const char *output = scratch_path("copy.txt");
    const tt_corpus_options options = {.paths = &path, .path_count = 1};
    tt_corpus *corpus = NULL;
    tt_prepare_summary summary;
    tt_error error;
    expect_success(tt_corpus_open(&options, &corpus, &error), &error);
    expect_success(tt_prepare_text(corpus, output, NULL, NULL, &summary, &error), &error);
    tt_corpus_close(&corpus);
    assert_int_equal(summary.documents, 300);
    char *first = scratch_read(path, NULL);
    char *second = scratch_read(output, NULL);
    assert_string_equal(first, second);
    free(first);
    free(second);
    expect_success(tt_corpus_open(&options, &corpus, &error), &error);
    expect_failure(tt_prepare_text(corpus, "/dev/full", NULL, NULL, &summary, &error), &error,
                   "No space left on device");
    tt_corpus_close(&corpus);
    path = scratch_path("blank.txt");
    scratch_write(path, "\n\n", 2);
    expect_success(tt_corpus_open(&options, &corpus, &error), &error);
    expect_failure(tt_prepare_text(corpus, output, NULL, NULL, &summary, &error), &error,
                   "found no document");
    tt_corpus_close(&corpus);
}

/* The command line */

/* Runs `ttrain prepare WORDS` with both outputs going to files. */
static int run_command(const char *words, char **output, char **errors)
{
    char copy[4096];
    char *arguments[64] = {"prepare"};
    int count = 1;
    snprintf(copy, sizeof copy, "%s", words);
    for (char *word = strtok(copy, " "); word != NULL; word = strtok(NULL, " ")) {
        arguments[count++] = word;
    }
    const char *paths[] = {scratch_path("stdout"), scratch_path("stderr")};
    int saved[2];
    fflush(stdout);
    fflush(stderr);
    for (int i = 0; i < 2; i++) {
        int file = open(paths[i], O_CREAT | O_TRUNC | O_WRONLY, 0600);
        saved[i] = dup(i + 1);
        assert_true(file >= 0 && saved[i] >= 0);
        dup2(file, i + 1);
        close(file);
    }
    int status = tt_prepare_main(count, arguments);
    fflush(stdout);
    fflush(stderr);
    for (int i = 0; i < 2; i++) {
        dup2(saved[i], i + 1);
        close(saved[i]);
    }
    *output = scratch_read(paths[0], NULL);
    *errors = scratch_read(paths[1], NULL);
    return status;
}

static void expect_command(const char *words, int status, const char *in_output,
                           const char *in_errors)
{
    char *output = NULL, *errors = NULL;
    int found = run_command(words, &output, &errors);
    if (found != status || strstr(output, in_output) == NULL || strstr(errors, in_errors) == NULL) {
        fail_msg("%s: expected %d with \"%s\" and \"%s\", found %d with \"%s\" and \"%s\"", words,
                 status, in_output, in_errors, found, output, errors);
    }
    free(output);
    free(errors);
}

static void test_command_line(void **state)
{
    (void)state;
    static const char *const names[] = {"tokenizer", "text", "wikipedia", "synthetic"};
    for (int i = 0; i < 4; i++) {
        char words[256];
        snprintf(words, sizeof words, "%s --help", names[i]);
        expect_command(words, TT_EXIT_DONE, "Example:\n  ttrain prepare ", "");
        snprintf(words, sizeof words, "%s --no-such-thing", names[i]);
        expect_command(words, TT_EXIT_USAGE, "", "unknown option --no-such-thing");
        expect_command(names[i], TT_EXIT_USAGE, "", "is required");
    }
    expect_command("--help", TT_EXIT_DONE, "wikipedia", "");
    expect_command("", TT_EXIT_USAGE, "", "wikipedia");
    expect_command("tokeniser", TT_EXIT_USAGE, "", "did you mean tokenizer?");
    expect_command("text --input x --output y", TT_EXIT_USAGE, "", "--tokenizer is required");
    expect_command("text --input x --tokenizer y", TT_EXIT_USAGE, "", "--output is required");
    expect_command("text --input x --sequence-length 4", TT_EXIT_USAGE, "", "--sequence-length");
    expect_command("text --input x --format html", TT_EXIT_USAGE, "", "--format");
    expect_command("tokenizer --input x --output y --vocab-size 7", TT_EXIT_USAGE, "",
                   "--vocab-size");
    expect_command("tokenizer --input no/such/file --output y", TT_EXIT_FAILED, "",
                   "no/such/file: No such file or directory");
}

static void test_commands(void **state)
{
    (void)state;
    char words[4096];
    const char *folder = scratch_folder;
    snprintf(words, sizeof words, "synthetic --documents 200 --seed 3 --json --output %s/a.txt",
             folder);
    expect_command(words, TT_EXIT_DONE, "\"documents\": 200", "200 documents");
    snprintf(words, sizeof words,
             "tokenizer --input %s/a.txt %s/a.txt --input=%s/a.txt --model bpe --vocab-size 500 "
             "--json --output %s/a.model",
             folder, folder, folder, folder);
    expect_command(words, TT_EXIT_DONE, "\"vocabulary_size\": 500", "600 documents");
    snprintf(words, sizeof words,
             "text --input %s/a.txt --tokenizer %s/a.model --sequence-length 32 "
             "--validation-fraction 0.1 --json --output %s/a_shards",
             folder, folder, folder);
    expect_command(words, TT_EXIT_DONE, "\"train_rows\": ", "memory: buffers and open shards");
    expect_command(words, TT_EXIT_FAILED, "", "--overwrite");
    snprintf(words, sizeof words, "text --input %s/a.txt --tokenizer %s/a.txt --output %s/b",
             folder, folder, folder);
    expect_command(words, TT_EXIT_FAILED, "", "expected a WordPiece piece");
    char dump[512];
    snprintf(dump, sizeof dump, "%s/dump.xml", folder);
    static const char page[] =
        "<mediawiki><page><title>A</title><ns>0</ns><revision><text>It ''is'' "
        "[[text|a text]].</text></revision></page></mediawiki>";
    scratch_write(dump, page, sizeof page - 1);
    snprintf(words, sizeof words, "wikipedia --input %s --text-only %s/clean.txt --json", dump,
             folder);
    expect_command(words, TT_EXIT_DONE, "\"pages\": 1", "as wikipedia");
    snprintf(dump, sizeof dump, "%s/clean.txt", folder);
    char *clean = scratch_read(dump, NULL);
    assert_string_equal(clean, "It is a text.\n\n");
    free(clean);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sentences),
        cmocka_unit_test(test_long_sentences),
        cmocka_unit_test(test_pairs),
        cmocka_unit_test(test_every_sentence_is_used),
        cmocka_unit_test(test_single_document),
        cmocka_unit_test(test_dynamic_shards),
        cmocka_unit_test(test_static_shards),
        cmocka_unit_test(test_small_buffer),
        cmocka_unit_test(test_same_seed_same_shards),
        cmocka_unit_test(test_numbers_of_shards),
        cmocka_unit_test(test_failures_leave_nothing),
        cmocka_unit_test(test_existing_shards),
        cmocka_unit_test(test_text_only),
        cmocka_unit_test(test_command_line),
        cmocka_unit_test(test_commands),
    };
    return cmocka_run_group_tests(tests, setup, scratch_teardown);
}
