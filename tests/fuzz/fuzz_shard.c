/* libFuzzer target: any bytes as a shard. Start it on a folder with a few real shards:
 *     fuzz_shard -max_len=65536 CORPUS_FOLDER */
#include "data/shard.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static char path[256];
static int descriptor = -1;

static void remove_file(void)
{
    unlink(path);
}

static void create_file(void)
{
    const char *folder = getenv("TMPDIR");
    snprintf(path, sizeof path, "%s/ttrain_fuzz_XXXXXX", folder != NULL ? folder : "/tmp");
    descriptor = mkstemp(path);
    if (descriptor < 0) {
        perror(path);
        exit(1);
    }
    atexit(remove_file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (descriptor < 0) {
        create_file();
    }
    if (ftruncate(descriptor, 0) != 0 || pwrite(descriptor, data, size, 0) != (ssize_t)size) {
        perror(path);
        exit(1);
    }
    tt_shard *shard;
    tt_error error;
    if (tt_shard_read(path, NULL, &shard, &error) == TT_OK) {
        tt_shard_free(&shard);
    }
    return 0;
}
