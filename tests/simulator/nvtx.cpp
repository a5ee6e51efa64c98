#include "nvtx3/nvToolsExt.h"
#include "simulator_runtime.hpp"

static thread_local int depth;

int nvtxRangePushA(const char *message)
{
    if (!message) {
        simulator_fail("nvtxRangePushA: a range without a name");
    }
    return depth++;
}

int nvtxRangePop(void)
{
    if (depth == 0) {
        simulator_fail("nvtxRangePop: no range has begun on this thread");
    }
    return --depth;
}

void nvtxMarkA(const char *message)
{
    if (!message) {
        simulator_fail("nvtxMarkA: a mark without a name");
    }
}
