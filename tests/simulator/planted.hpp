/* For tests of the simulator: running a piece of a program in a process of its own, and looking at
 * what it said and how it ended. */
#ifndef TT_SIMULATOR_PLANTED_HPP
#define TT_SIMULATOR_PLANTED_HPP

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition);              \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

#define CHECK_CUDA(call) CHECK((call) == cudaSuccess)

namespace planted
{

struct outcome {
    int status; /* of waitpid */
    std::string said;

    bool ended_well() const
    {
        return WIFEXITED(status) && WEXITSTATUS(status) == 0;
    }
    bool aborted() const
    {
        return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
    }
    bool has(const char *text) const
    {
        return said.find(text) != std::string::npos;
    }
};

/* Runs `body` in a child with these environment variables ("NAME=value"). */
inline outcome run(const std::function<void()> &body,
                   std::initializer_list<const char *> settings = {})
{
    int ends[2];
    if (pipe(ends) != 0) {
        abort();
    }
    fflush(nullptr);
    const pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        close(ends[0]);
        close(ends[1]);
        for (const char *setting : settings) {
            putenv(strdup(setting));
        }
        body();
        exit(0);
    }
    close(ends[1]);
    outcome result = {};
    char part[4096];
    for (ssize_t count; (count = read(ends[0], part, sizeof(part))) > 0;) {
        result.said.append(part, static_cast<size_t>(count));
    }
    close(ends[0]);
    waitpid(child, &result.status, 0);
    return result;
}

struct test {
    const char *name;
    void (*body)();
};

/* Runs all tests, each in a child, and prints one line each. */
inline int run_all(const test *tests, size_t count)
{
    int failed = 0;
    for (size_t i = 0; i < count; i++) {
        const outcome result = run(tests[i].body);
        const bool good = result.ended_well();
        printf("%s %s\n", good ? "ok    " : "FAILED", tests[i].name);
        if (!good) {
            printf("%s\n", result.said.c_str());
            failed++;
        }
    }
    return failed == 0 ? 0 : 1;
}

/* The text must be there, and shows what was said where it is not. */
inline void expect(const outcome &result, const char *text)
{
    if (!result.has(text)) {
        fprintf(stderr, "expected \"%s\", found:\n%s\n", text, result.said.c_str());
        abort();
    }
}

inline void expect_abort(const outcome &result, const char *text)
{
    expect(result, text);
    CHECK(result.aborted());
}

} // namespace planted

#endif
