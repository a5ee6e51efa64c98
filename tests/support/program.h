/* Programs that a test starts, waits for and kills. They run in the scratch folder; stdout and
 * stderr go to files of theirs. Nothing outlives the test: a program that runs too long is killed
 * with all that it started, and the test fails. */
#ifndef TT_TESTS_SUPPORT_PROGRAM_H
#define TT_TESTS_SUPPORT_PROGRAM_H

#include "support/scratch.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <time.h>

enum { PROGRAM_ARGUMENTS = 48, PROGRAM_ENVIRONMENT = 8 };

typedef struct {
    const char *arguments[PROGRAM_ARGUMENTS];     /* the program's path first */
    const char *environment[PROGRAM_ENVIRONMENT]; /* "NAME=VALUE" */
    uint64_t file_limit;                          /* bytes of its largest file; 0: no limit */
} program_call;

typedef struct {
    pid_t pid;
    char output[512], log[512]; /* stdout and stderr */
} program;

static UNUSED double program_clock(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static UNUSED void program_sleep(double seconds)
{
    struct timespec time = {.tv_sec = (time_t)seconds,
                            .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&time, NULL);
}

/* What MPI and OpenMP need to run several ranks on a small machine, in a container, as root. */
static UNUSED void program_environment(void)
{
    setenv("OMP_NUM_THREADS", "1", 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    setenv("OMPI_MCA_mpi_yield_when_idle", "1", 1);
    setenv("OMPI_MCA_btl_vader_single_copy_mechanism", "none", 1);
}

/* MPI's plug-ins leave memory behind that cannot be told from leaks of the program, since they are
 * unloaded by then; leaks are looked for in programs that run without MPI. */
#define PROGRAM_USES_MPI "ASAN_OPTIONS=detect_leaks=0"

static UNUSED void program_redirect(const char *path, int descriptor)
{
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    if (file < 0 || dup2(file, descriptor) < 0) {
        _exit(125);
    }
    close(file);
}

static UNUSED _Noreturn void program_become(const program_call *call, const program *started)
{
    setpgid(0, 0);
    program_environment();
    for (int i = 0; i < PROGRAM_ENVIRONMENT && call->environment[i]; i++) {
        putenv((char *)call->environment[i]);
    }
    int nothing = open("/dev/null", O_RDONLY);
    dup2(nothing, STDIN_FILENO);
    program_redirect(started->output, STDOUT_FILENO);
    program_redirect(started->log, STDERR_FILENO);
    if (call->file_limit > 0) {
        struct rlimit limit = {(rlim_t)call->file_limit, (rlim_t)call->file_limit};
        setrlimit(RLIMIT_FSIZE, &limit);
    }
    if (chdir(scratch_folder) == 0) {
        execvp(call->arguments[0], (char *const *)call->arguments);
    }
    _exit(126);
}

static UNUSED program program_start(const program_call *call)
{
    static int number;
    program started;
    number++;
    snprintf(started.output, sizeof started.output, "%s/program_%d.out", scratch_folder, number);
    snprintf(started.log, sizeof started.log, "%s/program_%d.log", scratch_folder, number);
    started.pid = fork();
    assert_true(started.pid >= 0);
    if (started.pid == 0) {
        program_become(call, &started);
    }
    setpgid(started.pid, started.pid);
    return started;
}

/* What it wrote to stderr so far, ended by a 0; free with free(). */
static UNUSED char *program_log(const program *started)
{
    return access(started->log, R_OK) == 0 ? scratch_read(started->log, NULL) : strdup("");
}

/* The end of a text, which is what a message has room for. */
static UNUSED const char *end_of(const char *text)
{
    size_t length = strlen(text);
    return length > 900 ? text + length - 900 : text;
}

/* True when it has ended; its exit status, or 128 and the signal that ended it. */
static UNUSED bool program_ended(const program *started, int *status)
{
    int state;
    pid_t ended = waitpid(started->pid, &state, WNOHANG);
    if (ended == 0) {
        return false;
    }
    assert_int_equal(ended, started->pid);
    *status = WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
    return true;
}

/* Its exit status; fails the test when it takes longer than `seconds`. */
static UNUSED int program_wait(const program *started, double seconds)
{
    double until = program_clock() + seconds;
    int status;
    while (!program_ended(started, &status)) {
        if (program_clock() > until) {
            kill(-started->pid, SIGKILL);
            waitpid(started->pid, &status, 0);
            char *log = program_log(started);
            fail_msg("still running after %g s; it said:\n%s", seconds, end_of(log));
        }
        program_sleep(0.005);
    }
    return status;
}

static UNUSED void program_kill(const program *started, int number)
{
    assert_int_equal(kill(started->pid, number), 0);
}

/* How many lines of `text` begin with `start`. */
static UNUSED int count_lines(const char *text, const char *start)
{
    int count = 0;
    for (const char *line = text; line && *line; line = strchr(line, '\n')) {
        line += *line == '\n';
        count += strncmp(line, start, strlen(start)) == 0;
    }
    return count;
}

static UNUSED void expect_in_log(const char *log, const char *fragment)
{
    if (!strstr(log, fragment)) {
        fail_msg("expected \"%s\" in:\n%s", fragment, end_of(log));
    }
}

#endif
