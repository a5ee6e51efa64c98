/* libFuzzer target: any bytes as the metrics of a run, read for a report and made into a page:
 * fuzz_metrics -max_len=4096 */
#include "support/hostile_metrics.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    hostile_metrics(data, size);
    return 0;
}
