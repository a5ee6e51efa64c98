/* Conflicts between streams: two operations that touch the same bytes, one of them writing, and
 * neither of them known to come before the other. */
#include "runtime.hpp"

#include <algorithm>

namespace simulator
{

namespace
{

struct touched {
    simulator_range range;
    const char *begin, *end;
    work_ptr by;
    int lane;
    uint32_t turn;
};

struct records {
    std::mutex lock;
    std::map<const allocation *, std::vector<touched>> of;
};

records &all()
{
    static auto *kept = new records;
    return *kept;
}

const char *end_of(const simulator_range &range)
{
    return static_cast<const char *>(range.memory) + (range.height - 1) * range.pitch + range.width;
}

/* Whether any byte of row [begin, end) is in the range. */
bool row_meets(const char *begin, const char *end, const simulator_range &range)
{
    const char *first = static_cast<const char *>(range.memory);
    if (range.height == 1 || range.pitch == 0) {
        return begin < first + range.width && first < end;
    }
    /* The first row of the range that ends behind `begin`. */
    const std::ptrdiff_t pitch = static_cast<std::ptrdiff_t>(range.pitch);
    const std::ptrdiff_t gap = begin - (first + range.width);
    const std::ptrdiff_t row = gap < 0 ? 0 : gap / pitch + 1;
    return row < static_cast<std::ptrdiff_t>(range.height) && first + row * pitch < end;
}

bool meet(const simulator_range &a, const simulator_range &b)
{
    const simulator_range &rows = a.height <= b.height ? a : b;
    const simulator_range &other = a.height <= b.height ? b : a;
    for (size_t row = 0; row < rows.height; row++) {
        const char *begin = static_cast<const char *>(rows.memory) + row * rows.pitch;
        if (row_meets(begin, begin + rows.width, other)) {
            return true;
        }
    }
    return false;
}

bool same(const simulator_range &a, const simulator_range &b)
{
    return a.memory == b.memory && a.width == b.width && a.height == b.height &&
           a.pitch == b.pitch && a.write == b.write;
}

/* Which operand a kernel's pointer stands for is a guess, good enough against copies only. */
bool comparable(const work &a, const work &b)
{
    const auto copies = [](const work &what) {
        return what.kind == SIMULATOR_COPY || what.kind == SIMULATOR_SET;
    };
    return (a.kind != SIMULATOR_KERNEL || copies(b)) && (b.kind != SIMULATOR_KERNEL || copies(a));
}

std::string title(const work &what)
{
    std::string text = what.kind == SIMULATOR_KERNEL ? "kernel " : "";
    text += what.name;
    const std::string where = place(what.where);
    return where.empty() ? text : text + " (" + where + ")";
}

[[noreturn]] void fail_race(const allocation &which, const touched &before, const operation &who,
                            const simulator_range &range)
{
    const char *at = std::max(before.begin, static_cast<const char *>(range.memory));
    running_name = nullptr; /* the message names both */
    simulator_fail("missing dependency between streams: %s %s, %s %s, and nothing orders them: %s",
                   title(*before.by).c_str(), before.range.write ? "writes" : "reads",
                   title(*who.what).c_str(), range.write ? "writes" : "reads",
                   describe_allocation(which, at).c_str());
}

void check_range(const operation &who, const simulator_range &range)
{
    const allocation *which = find_allocation(range.memory);
    if (which == nullptr) {
        return;
    }
    std::vector<touched> &list = all().of[which];
    const char *begin = static_cast<const char *>(range.memory);
    const char *end = end_of(range);
    touched *known = nullptr;
    for (touched &one : list) {
        if (one.lane == who.lane) {
            if (known == nullptr && one.by == who.what && same(one.range, range)) {
                known = &one;
            }
            continue;
        }
        const size_t lane = static_cast<size_t>(one.lane);
        const bool ordered = lane < who.known.size() && one.turn <= who.known[lane];
        if (!ordered && (one.range.write || range.write) && begin < one.end && one.begin < end &&
            comparable(*one.by, *who.what) && meet(one.range, range)) {
            fail_race(*which, one, who, range);
        }
    }
    if (known != nullptr) {
        known->turn = who.turn;
    } else {
        list.push_back({range, begin, end, who.what, who.lane, who.turn});
    }
}

} // namespace

void check_ranges(const operation &who, const std::vector<simulator_range> &ranges)
{
    const std::lock_guard<std::mutex> held(all().lock);
    for (const simulator_range &range : ranges) {
        check_range(who, range);
    }
}

void check_races(const operation &who)
{
    check_ranges(who, who.what->ranges);
}

void forget_races(const clock &host)
{
    const std::lock_guard<std::mutex> held(all().lock);
    for (auto &[which, list] : all().of) {
        list.erase(std::remove_if(list.begin(), list.end(),
                                  [&](const touched &one) {
                                      const size_t lane = static_cast<size_t>(one.lane);
                                      return lane < host.size() && one.turn <= host[lane];
                                  }),
                   list.end());
    }
}

} // namespace simulator
