#include "data/loader.h"

#include "core/clock.h"
#include "data/sample_order.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum {
    BATCHES = 4,  /* one in the caller's hands, the others assembled ahead */
    QUEUE = 2,    /* the shard in use and the next one */
    RESIDENTS = 3 /* no more shards than this: all stay in memory, and later epochs read nothing */
};

/* A shard in memory. */
typedef struct {
    int index;
    tt_shard *shard; /* NULL: free */
    int users;       /* queue entries */
} resident;

/* A stretch whose samples are at hand. */
typedef struct {
    tt_sample_stretch stretch;
    resident *source;
    uint32_t *rows; /* [end - first]: row of each sample */
} queue_entry;

struct tt_loader {
    tt_loader_options options;
    tt_row_source source;
    char **names; /* [source.count] */
    tt_shard_info *infos;
    tt_shard_expectations expectations;
    uint64_t fingerprint;
    int64_t batch_rows;
    int64_t end_sample; /* the stream ends before it; rows of a batch from here on are fillers */
    int32_t pad;
    tt_sample_order order; /* the reader's, once it runs */
    tt_masking *masking;   /* the assembler's, once it runs */

    bool has_mutex, reader_started, assembler_started;
    pthread_t reader, assembler;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    /* Below: under the mutex. What a queue entry or a batch points to belongs to who holds it. */
    bool stop, assembler_ended;
    tt_error error; /* the reader's, if any */
    resident residents[RESIDENTS];
    queue_entry queue[QUEUE];
    int queue_head, queue_count;
    tt_batch batches[BATCHES];
    int64_t assembled, taken, returned; /* batches so far */
};

/* --- the reader's thread --- */

/* The first sample of this rank at or after `sample`. */
static int64_t next_own_sample(const tt_loader *loader, int64_t sample)
{
    int64_t batch = loader->options.global_batch;
    int64_t place = sample % batch, start = sample - place;
    int64_t first = loader->options.rank * loader->batch_rows;
    if (place < first) {
        return start + first;
    }
    return place < first + loader->batch_rows ? sample : start + batch + first;
}

static uint64_t hash_info(const tt_shard_info *info)
{
    const uint64_t fields[] = {
        (uint64_t)info->version,
        (uint64_t)info->masking,
        (uint64_t)info->rows,
        (uint64_t)info->sequence_length,
        (uint64_t)info->max_predictions,
        (uint64_t)info->vocabulary_size,
        info->vocabulary_hash,
        info->tokenizer_hash,
        (uint64_t)info->special.pad,
        (uint64_t)info->special.unknown,
        (uint64_t)info->special.cls,
        (uint64_t)info->special.sep,
        (uint64_t)info->special.mask,
        info->seed,
    };
    return XXH64(info->source, strlen(info->source), XXH64(fields, sizeof fields, 0));
}

/* The shard if it is in memory, counted as used once more, else a free place with `shard` NULL. */
static resident *claim_resident(tt_loader *loader, int index)
{
    /* There are more places than the queue has entries, so one is free. */
    int free_place = 0;
    for (int i = 0; i < RESIDENTS; i++) {
        resident *place = &loader->residents[i];
        if (place->shard == NULL) {
            free_place = i;
        } else if (place->index == index) {
            place->users++;
            return place;
        }
    }
    loader->residents[free_place] = (resident){.index = index, .users = 1};
    return &loader->residents[free_place];
}

static tt_status read_shard(tt_loader *loader, int index, tt_shard **shard, tt_error *error)
{
    const char *name = loader->names[index];
    TT_TRY(loader->source.read(&loader->source, index, &loader->expectations, shard, error));
    if (hash_info(&(*shard)->info) != hash_info(&loader->infos[index])) {
        loader->source.release(&loader->source, shard);
        return tt_error_set(error, TT_INVALID_INPUT,
                            "%s: has changed since the run started, expected the same %lld rows",
                            name, (long long)loader->infos[index].rows);
    }
    return TT_OK;
}

/* Waits for room in the queue; false when the loader stops. */
static bool wait_for_room(tt_loader *loader)
{
    pthread_mutex_lock(&loader->mutex);
    while (!loader->stop && loader->queue_count == QUEUE) {
        pthread_cond_wait(&loader->changed, &loader->mutex);
    }
    bool go_on = !loader->stop;
    pthread_mutex_unlock(&loader->mutex);
    return go_on;
}

static tt_status load_stretch(tt_loader *loader, const tt_sample_stretch *stretch,
                              queue_entry *entry, tt_error *error)
{
    pthread_mutex_lock(&loader->mutex);
    resident *source = claim_resident(loader, stretch->shard);
    pthread_mutex_unlock(&loader->mutex);
    /* A free place is this thread's alone until its shard is set. */
    if (source->shard == NULL) {
        tt_shard *shard = NULL;
        TT_TRY(read_shard(loader, stretch->shard, &shard, error));
        pthread_mutex_lock(&loader->mutex);
        source->shard = shard;
        pthread_mutex_unlock(&loader->mutex);
    }
    *entry = (queue_entry){.stretch = *stretch, .source = source};
    int64_t count = stretch->end - stretch->first;
    entry->rows = malloc((size_t)count * sizeof *entry->rows);
    if (entry->rows == NULL) {
        return tt_error_set(error, TT_OUT_OF_MEMORY, "%s: no memory for the order of %lld rows",
                            loader->names[stretch->shard], (long long)count);
    }
    tt_sample_order_rows(&loader->order, stretch, entry->rows);
    return TT_OK;
}

static void *run_reader(void *argument)
{
    tt_loader *loader = argument;
    int64_t sample =
        next_own_sample(loader, loader->options.first_step * loader->options.global_batch);
    while (sample < loader->end_sample && wait_for_room(loader)) {
        tt_sample_stretch stretch = tt_sample_order_find(&loader->order, sample);
        queue_entry entry;
        tt_error error = {.status = TT_OK};
        tt_status status = load_stretch(loader, &stretch, &entry, &error);
        pthread_mutex_lock(&loader->mutex);
        if (status == TT_OK) {
            loader->queue[(loader->queue_head + loader->queue_count) % QUEUE] = entry;
            loader->queue_count++;
        } else {
            loader->error = error;
        }
        pthread_cond_broadcast(&loader->changed);
        pthread_mutex_unlock(&loader->mutex);
        if (status != TT_OK) {
            break;
        }
        sample = next_own_sample(loader, stretch.end);
    }
    return NULL;
}

/* --- the assembler's thread --- */

/* Drops the queue's first entry, and its shard when that is neither used nor worth keeping. */
static void release_entry(tt_loader *loader)
{
    queue_entry *entry = &loader->queue[loader->queue_head];
    free(entry->rows);
    entry->source->users--;
    if (entry->source->users == 0 && loader->source.count > RESIDENTS) {
        loader->source.release(&loader->source, &entry->source->shard);
    }
    loader->queue_head = (loader->queue_head + 1) % QUEUE;
    loader->queue_count--;
    pthread_cond_broadcast(&loader->changed);
}

/* The queue entry that `sample` lies in, once it is there; NULL when it will not come. */
static const queue_entry *wait_for_sample(tt_loader *loader, int64_t sample)
{
    const queue_entry *found = NULL;
    pthread_mutex_lock(&loader->mutex);
    while (!loader->stop && found == NULL) {
        if (loader->queue_count == 0) {
            if (loader->error.status != TT_OK) {
                break;
            }
            pthread_cond_wait(&loader->changed, &loader->mutex);
        } else if (sample >= loader->queue[loader->queue_head].stretch.end) {
            release_entry(loader);
        } else {
            found = &loader->queue[loader->queue_head];
        }
    }
    pthread_mutex_unlock(&loader->mutex);
    return found;
}

static void fill_row(const tt_loader *loader, tt_batch *batch, int64_t row)
{
    int64_t length = batch->sequence_length;
    for (int64_t i = 0; i < length; i++) {
        batch->input_ids[row * length + i] = loader->pad;
        batch->attention_mask[row * length + i] = i == 0;
        batch->segment_ids[row * length + i] = 0;
    }
    batch->next_sentence_labels[row] = -1;
}

/* Returns the number of masked positions. */
static int copy_masks(const tt_shard *shard, int64_t from, int32_t *positions, int32_t *labels)
{
    int room = shard->info.max_predictions, count = 0;
    const int32_t *stored = shard->masked_positions + from * room;
    while (count < room && stored[count] != 0) {
        positions[count] = stored[count];
        labels[count] = shard->masked_ids[from * room + count];
        count++;
    }
    return count;
}

static int draw_masks(tt_loader *loader, const tt_shard *shard, int64_t from, int64_t sample,
                      int32_t *ids, int32_t *positions, int32_t *labels)
{
    const uint8_t *mask = shard->attention_mask + from * shard->info.sequence_length;
    int length = 0;
    while (length < shard->info.sequence_length && mask[length] != 0) {
        length++;
    }
    tt_random random;
    tt_sample_order_masks(loader->options.seed, sample, &random);
    return tt_masking_apply(loader->masking, &random, length, ids,
                            shard->special_tokens_mask + from * shard->info.sequence_length,
                            positions, labels);
}

static void copy_row(tt_loader *loader, tt_batch *batch, int64_t row, const queue_entry *entry,
                     int64_t sample)
{
    const tt_shard *shard = entry->source->shard;
    int64_t from = entry->rows[sample - entry->stretch.first];
    int64_t length = batch->sequence_length;
    int32_t *ids = batch->input_ids + row * length;
    memcpy(ids, shard->input_ids + from * length, (size_t)length * sizeof *ids);
    memcpy(batch->attention_mask + row * length, shard->attention_mask + from * length,
           (size_t)length);
    for (int64_t i = 0; i < length; i++) {
        batch->segment_ids[row * length + i] = shard->segment_ids[from * length + i];
    }
    batch->next_sentence_labels[row] = shard->next_sentence_labels[from];
    int32_t *positions = batch->masked_positions + row * batch->max_predictions;
    int32_t *labels = batch->masked_labels + row * batch->max_predictions;
    if (shard->info.masking == TT_MASKING_STATIC) {
        batch->masked_count += copy_masks(shard, from, positions, labels);
    } else if (shard->info.masking == TT_MASKING_DYNAMIC) {
        batch->masked_count += draw_masks(loader, shard, from, sample, ids, positions, labels);
    }
}

/* False when the rows will not come. */
static bool assemble(tt_loader *loader, tt_batch *batch, int64_t step)
{
    batch->first_sample = step * loader->options.global_batch + loader->options.rank * batch->rows;
    batch->masked_count = 0;
    for (int64_t i = 0; i < batch->rows * batch->max_predictions; i++) {
        batch->masked_positions[i] = -1;
        batch->masked_labels[i] = -1;
    }
    for (int64_t row = 0; row < batch->rows; row++) {
        int64_t sample = batch->first_sample + row;
        if (sample >= loader->end_sample) {
            fill_row(loader, batch, row);
            continue;
        }
        const queue_entry *entry = wait_for_sample(loader, sample);
        if (entry == NULL) {
            return false;
        }
        copy_row(loader, batch, row, entry, sample);
    }
    return true;
}

static void *run_assembler(void *argument)
{
    tt_loader *loader = argument;
    int64_t step = loader->options.first_step;
    bool go_on = true;
    pthread_mutex_lock(&loader->mutex);
    while (go_on && (loader->options.last_step == 0 || step < loader->options.last_step)) {
        while (!loader->stop && loader->assembled - loader->returned == BATCHES) {
            pthread_cond_wait(&loader->changed, &loader->mutex);
        }
        tt_batch *batch = &loader->batches[loader->assembled % BATCHES];
        go_on = !loader->stop;
        pthread_mutex_unlock(&loader->mutex);
        go_on = go_on && assemble(loader, batch, step);
        pthread_mutex_lock(&loader->mutex);
        if (go_on) {
            loader->assembled++;
            step++;
            pthread_cond_broadcast(&loader->changed);
        }
    }
    loader->assembler_ended = true;
    pthread_cond_broadcast(&loader->changed);
    pthread_mutex_unlock(&loader->mutex);
    return NULL;
}

/* --- the caller's side --- */

static tt_status check_options(const tt_loader_options *options, tt_error *error)
{
    const struct {
        const char *name;
        int64_t value, low, high;
    } numbers[] = {
        {"sequence length", options->sequence_length, 1, INT32_MAX},
        {"vocabulary size", options->vocabulary_size, 1, INT32_MAX},
        {"maximum of predictions", options->max_predictions, options->source ? 0 : 1,
         options->sequence_length},
        {"number of ranks", options->world_size, 1, INT32_MAX},
        {"rank", options->rank, 0, (int64_t)options->world_size - 1},
        {"global batch", options->global_batch, 1, INT32_MAX},
        {"first step", options->first_step, 0, INT64_MAX / INT32_MAX},
        {"last step", options->last_step, 0, INT64_MAX / INT32_MAX},
    };
    if ((options->source ? options->source->count : options->path_count) < 1) {
        return tt_error_set(error, TT_INVALID_INPUT, "no shard given, expected at least one");
    }
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        if (numbers[i].value < numbers[i].low || numbers[i].value > numbers[i].high) {
            return tt_error_set(error, TT_INVALID_INPUT, "loader: %s %lld, expected %lld to %lld",
                                numbers[i].name, (long long)numbers[i].value,
                                (long long)numbers[i].low, (long long)numbers[i].high);
        }
    }
    if (options->global_batch % options->world_size != 0) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "loader: global batch %lld, expected a multiple of the %d ranks",
                            (long long)options->global_batch, options->world_size);
    }
    return TT_OK;
}

static tt_status mixed(const tt_loader *loader, int index, const char *what, long long found,
                       long long expected, tt_error *error)
{
    return tt_error_set(error, TT_INVALID_INPUT, "%s: %s %lld, expected %lld as in %s",
                        loader->names[index], what, found, expected, loader->names[0]);
}

/* All shards of a run are of one kind. */
static tt_status check_alike(const tt_loader *loader, int index, tt_error *error)
{
    const tt_shard_info *info = &loader->infos[index], *first = &loader->infos[0];
    if (info->version != first->version) {
        return mixed(loader, index, "layout version", info->version, first->version, error);
    }
    if (info->masking != first->masking) {
        static const char *const names[] = {"static", "dynamic", "no"};
        return tt_error_set(error, TT_INVALID_INPUT, "%s: %s masking, expected %s as in %s",
                            loader->names[index], names[info->masking], names[first->masking],
                            loader->names[0]);
    }
    if (info->sequence_length != first->sequence_length) {
        return mixed(loader, index, "sequence length", info->sequence_length,
                     first->sequence_length, error);
    }
    if (info->vocabulary_size != first->vocabulary_size) {
        return mixed(loader, index, "vocabulary size", info->vocabulary_size,
                     first->vocabulary_size, error);
    }
    if (memcmp(&info->special, &first->special, sizeof info->special) != 0) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "%s: other special ids than %s, expected the same",
                            loader->names[index], loader->names[0]);
    }
    if (info->tokenizer_hash != first->tokenizer_hash) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "%s: shard made with another tokenizer: found hash %016llx, expected "
                            "%016llx as in %s",
                            loader->names[index], (unsigned long long)info->tokenizer_hash,
                            (unsigned long long)first->tokenizer_hash, loader->names[0]);
    }
    return TT_OK;
}

static tt_status inspect_shards(tt_loader *loader, tt_error *error)
{
    int count = loader->source.count;
    for (int i = 0; i < count; i++) {
        TT_TRY(loader->source.inspect(&loader->source, i, &loader->infos[i], error));
        TT_TRY(check_alike(loader, i, error));
        TT_TRY(tt_shard_expect(loader->names[i], &loader->infos[i], &loader->expectations, error));
        const uint64_t both[] = {loader->fingerprint, hash_info(&loader->infos[i])};
        loader->fingerprint = XXH64(both, sizeof both, 0);
    }
    int64_t *rows = malloc((size_t)count * sizeof *rows);
    if (rows == NULL) {
        return tt_error_set(error, TT_OUT_OF_MEMORY, "no memory for %d shards", count);
    }
    for (int i = 0; i < count; i++) {
        rows[i] = loader->infos[i].rows;
    }
    tt_status status = tt_sample_order_start(&loader->order, loader->options.seed,
                                             loader->options.shuffle, count, rows, error);
    free(rows);
    if (status == TT_OK && loader->order.rows < loader->options.world_size) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "%s: %lld rows in %d shards, expected at least one for each of %d "
                            "ranks",
                            loader->names[0], (long long)loader->order.rows, count,
                            loader->options.world_size);
    }
    return status;
}

static tt_status copy_options(tt_loader *loader, const tt_loader_options *options, tt_error *error)
{
    loader->options = *options;
    loader->source = options->source ? *options->source
                                     : tt_row_source_files(options->paths, options->path_count);
    size_t count = (size_t)loader->source.count;
    loader->names = calloc(count, sizeof *loader->names);
    loader->infos = calloc(count, sizeof *loader->infos);
    bool enough = loader->names != NULL && loader->infos != NULL;
    for (size_t i = 0; enough && i < count; i++) {
        loader->names[i] = strdup(loader->source.names[i]);
        enough = loader->names[i] != NULL;
    }
    if (!enough) {
        return tt_error_set(error, TT_OUT_OF_MEMORY, "no memory for %zu shards", count);
    }
    loader->source.names = (const char *const *)loader->names;
    loader->options.paths = NULL;
    loader->options.source = NULL;
    loader->expectations =
        (tt_shard_expectations){options->sequence_length, options->vocabulary_size,
                                options->max_predictions, options->tokenizer_hash};
    loader->batch_rows = options->global_batch / options->world_size;
    return TT_OK;
}

static tt_status prepare_masking(tt_loader *loader, tt_error *error)
{
    const tt_shard_info *info = &loader->infos[0];
    loader->pad = info->special.pad >= 0 ? info->special.pad : 0;
    if (info->masking != TT_MASKING_NONE && loader->options.max_predictions < 1) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "%s: rows with masked tokens, expected a maximum of predictions above "
                            "0, found 0",
                            loader->names[0]);
    }
    if (info->masking != TT_MASKING_DYNAMIC) {
        return TT_OK;
    }
    tt_masking_options options = loader->options.masking;
    options.max_predictions = loader->options.max_predictions;
    options.vocabulary_size = info->vocabulary_size;
    options.special = info->special;
    return tt_masking_create(&options, info->sequence_length, &loader->masking, error);
}

static tt_status allocate_batches(tt_loader *loader, tt_error *error)
{
    int length = loader->options.sequence_length, room = loader->options.max_predictions;
    size_t rows = (size_t)loader->batch_rows;
    size_t tokens = rows * (size_t)length;
    size_t predictions = rows * (size_t)(room > 0 ? room : 1);
    for (int i = 0; i < BATCHES; i++) {
        tt_batch *batch = &loader->batches[i];
        *batch = (tt_batch){
            .rows = loader->batch_rows, .sequence_length = length, .max_predictions = room};
        batch->input_ids = malloc(tokens * sizeof *batch->input_ids);
        batch->attention_mask = malloc(tokens);
        batch->segment_ids = malloc(tokens * sizeof *batch->segment_ids);
        batch->masked_positions = malloc(predictions * sizeof *batch->masked_positions);
        batch->masked_labels = malloc(predictions * sizeof *batch->masked_labels);
        batch->next_sentence_labels = malloc(rows * sizeof *batch->next_sentence_labels);
        if (batch->input_ids == NULL || batch->attention_mask == NULL ||
            batch->segment_ids == NULL || batch->masked_positions == NULL ||
            batch->masked_labels == NULL || batch->next_sentence_labels == NULL) {
            return tt_error_set(error, TT_OUT_OF_MEMORY,
                                "no memory for batches of %lld rows of %d tokens",
                                (long long)loader->batch_rows, length);
        }
    }
    return TT_OK;
}

static tt_status start_threads(tt_loader *loader, tt_error *error)
{
    pthread_mutex_init(&loader->mutex, NULL);
    pthread_cond_init(&loader->changed, NULL);
    loader->has_mutex = true;
    /* Signals are the main thread's business. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&loader->reader, NULL, run_reader, loader);
    loader->reader_started = failed == 0;
    if (failed == 0) {
        failed = pthread_create(&loader->assembler, NULL, run_assembler, loader);
        loader->assembler_started = failed == 0;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed != 0) {
        return tt_error_set(error, TT_IO_FAILED, "loader: cannot start a thread: %s",
                            strerror(failed));
    }
    return TT_OK;
}

static tt_status open_loader(tt_loader *loader, const tt_loader_options *options, tt_error *error)
{
    TT_TRY(copy_options(loader, options, error));
    TT_TRY(inspect_shards(loader, error));
    TT_TRY(prepare_masking(loader, error));
    TT_TRY(allocate_batches(loader, error));
    int64_t rows = loader->order.rows, batch = options->global_batch;
    if (!options->shuffle && options->last_step == 0) {
        loader->options.last_step = (rows + batch - 1) / batch;
    }
    int64_t last = loader->options.last_step;
    loader->end_sample = last > 0 ? last * batch : INT64_MAX;
    if (!options->shuffle && loader->end_sample > rows) {
        loader->end_sample = rows;
    }
    return start_threads(loader, error);
}

tt_status tt_loader_open(const tt_loader_options *options, tt_loader **loader, tt_error *error)
{
    *loader = NULL;
    TT_TRY(check_options(options, error));
    tt_loader *created = calloc(1, sizeof *created);
    if (created == NULL) {
        return tt_error_set(error, TT_OUT_OF_MEMORY, "loader: out of memory");
    }
    tt_status status = open_loader(created, options, error);
    if (status != TT_OK) {
        tt_loader_close(&created);
        return status;
    }
    *loader = created;
    return TT_OK;
}

tt_status tt_loader_next(tt_loader *loader, tt_batch **batch, tt_error *error)
{
    *batch = NULL;
    double start = tt_clock_seconds();
    tt_status status = TT_OK;
    pthread_mutex_lock(&loader->mutex);
    loader->returned = loader->taken;
    pthread_cond_broadcast(&loader->changed);
    while (loader->assembled == loader->taken && !loader->assembler_ended) {
        pthread_cond_wait(&loader->changed, &loader->mutex);
    }
    if (loader->assembled > loader->taken) {
        *batch = &loader->batches[loader->taken % BATCHES];
        (*batch)->wait_seconds = tt_clock_seconds() - start;
        loader->taken++;
    } else if (loader->error.status != TT_OK) {
        *error = loader->error;
        status = error->status;
    }
    pthread_mutex_unlock(&loader->mutex);
    return status;
}

int64_t tt_loader_rows(const tt_loader *loader)
{
    return loader->order.rows;
}

uint64_t tt_loader_fingerprint(const tt_loader *loader)
{
    return loader->fingerprint;
}

static void stop_threads(tt_loader *loader)
{
    pthread_mutex_lock(&loader->mutex);
    loader->stop = true;
    pthread_cond_broadcast(&loader->changed);
    pthread_mutex_unlock(&loader->mutex);
    if (loader->reader_started) {
        pthread_join(loader->reader, NULL);
    }
    if (loader->assembler_started) {
        pthread_join(loader->assembler, NULL);
    }
    pthread_cond_destroy(&loader->changed);
    pthread_mutex_destroy(&loader->mutex);
}

void tt_batch_free(tt_batch *batch)
{
    free(batch->input_ids);
    free(batch->attention_mask);
    free(batch->segment_ids);
    free(batch->masked_positions);
    free(batch->masked_labels);
    free(batch->next_sentence_labels);
    *batch = (tt_batch){0};
}

void tt_loader_close(tt_loader **loader)
{
    tt_loader *closing = *loader;
    *loader = NULL;
    if (closing == NULL) {
        return;
    }
    if (closing->has_mutex) {
        stop_threads(closing);
    }
    for (int i = 0; i < closing->queue_count; i++) {
        free(closing->queue[(closing->queue_head + i) % QUEUE].rows);
    }
    for (int i = 0; i < RESIDENTS; i++) {
        if (closing->residents[i].shard != NULL) {
            closing->source.release(&closing->source, &closing->residents[i].shard);
        }
    }
    for (int i = 0; i < BATCHES; i++) {
        tt_batch_free(&closing->batches[i]);
    }
    for (int i = 0; closing->names != NULL && i < closing->source.count; i++) {
        free(closing->names[i]);
    }
    free(closing->names);
    free(closing->infos);
    tt_masking_free(&closing->masking);
    tt_sample_order_free(&closing->order);
    free(closing);
}
