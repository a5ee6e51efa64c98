#include "data/row_source.h"

#include <stddef.h>

static tt_status inspect_file(const tt_row_source *source, int index, tt_shard_info *info,
                              tt_error *error)
{
    return tt_shard_inspect(source->names[index], info, error);
}

static tt_status read_file(const tt_row_source *source, int index,
                           const tt_shard_expectations *expectations, tt_shard **shard,
                           tt_error *error)
{
    return tt_shard_read(source->names[index], expectations, shard, error);
}

static void release_file(const tt_row_source *source, tt_shard **shard)
{
    (void)source;
    tt_shard_free(shard);
}

tt_row_source tt_row_source_files(const char *const *paths, int count)
{
    return (tt_row_source){.count = count,
                           .names = paths,
                           .inspect = inspect_file,
                           .read = read_file,
                           .release = release_file};
}

static tt_status inspect_memory(const tt_row_source *source, int index, tt_shard_info *info,
                                tt_error *error)
{
    (void)error;
    tt_shard *const *shards = source->user;
    *info = shards[index]->info;
    return TT_OK;
}

static tt_status read_memory(const tt_row_source *source, int index,
                             const tt_shard_expectations *expectations, tt_shard **shard,
                             tt_error *error)
{
    (void)expectations;
    (void)error;
    tt_shard *const *shards = source->user;
    *shard = shards[index];
    return TT_OK;
}

static void release_memory(const tt_row_source *source, tt_shard **shard)
{
    (void)source;
    *shard = NULL;
}

tt_row_source tt_row_source_memory(tt_shard *const *shards, const char *const *names, int count)
{
    return (tt_row_source){.count = count,
                           .names = names,
                           .user = (void *)shards,
                           .inspect = inspect_memory,
                           .read = read_memory,
                           .release = release_memory};
}
