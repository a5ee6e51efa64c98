/* libFuzzer target: any bytes as a recipe. Start it on a folder with a few real recipes:
 *     fuzz_recipe -max_len=4096 CORPUS_FOLDER */
#include "support/hostile_input.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    hostile_recipe(data, size);
    return 0;
}
