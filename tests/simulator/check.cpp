/* Judging every access of a kernel; see runtime.hpp. Empty so far. */
#include "runtime.hpp"

namespace simulator
{

bool checks_accesses()
{
    return false;
}
void check_device_region(char *, size_t)
{
}
void check_allocated(const allocation &)
{
}
void check_freed(const allocation &)
{
}
void check_work_begins(const work &)
{
}
void check_work_ends(const work &)
{
}
void check_work_ranges(const std::vector<simulator_range> &)
{
}
void check_shared_region(char *, size_t)
{
}
void check_block_begins(char *, size_t)
{
}
void check_shared_begins(char *, size_t)
{
}
void check_block_meets()
{
}
void check_warp_meets(int, uint32_t)
{
}
void check_block_ends()
{
}

} // namespace simulator

int simulator_checks_accesses(void)
{
    return simulator::checks_accesses() ? 1 : 0;
}
