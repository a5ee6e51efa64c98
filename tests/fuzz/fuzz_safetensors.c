/* libFuzzer target: any bytes as the header of a safetensors file, of as many bytes of data as its
 * first byte says: fuzz_safetensors -max_len=4096 */
#include "support/hostile_input.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size > 0) {
        hostile_header(data + 1, size - 1, data[0]);
    }
    return 0;
}
