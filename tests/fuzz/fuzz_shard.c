/* libFuzzer target: any bytes as a shard. Start it on a folder with a few real shards:
 *     fuzz_shard -max_len=65536 CORPUS_FOLDER */
#include "data/shard.h"
#include "fuzz/fuzz_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    tt_shard *shard;
    tt_error error;
    if (tt_shard_read(fuzz_file(data, size), NULL, &shard, &error) == TT_OK) {
        tt_shard_free(&shard);
    }
    return 0;
}
