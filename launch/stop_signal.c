#include "launch/stop_signal.h"

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

static atomic_int received;

static sigset_t watched(void)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGUSR1);
    return set;
}

static void end_at_once(int number)
{
    sigset_t set = watched();
    signal(number, SIG_DFL);
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    kill(getpid(), number);
}

static void *receive(void *unused)
{
    (void)unused;
    sigset_t set = watched();
    bool interrupted = false;
    int number;
    while (sigwait(&set, &number) == 0) {
        if (number == SIGINT && interrupted) {
            end_at_once(number);
        }
        interrupted = interrupted || number == SIGINT;
        atomic_store(&received, number);
    }
    return NULL;
}

tt_status tt_stop_signal_watch(tt_error *error)
{
    sigset_t set = watched();
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    pthread_t thread;
    int failed = pthread_create(&thread, NULL, receive, NULL);
    if (failed != 0) {
        pthread_sigmask(SIG_UNBLOCK, &set, NULL);
        return tt_error_set(error, TT_IO_FAILED,
                            "cannot start the thread that waits for signals: "
                            "%s",
                            strerror(failed));
    }
    pthread_detach(thread);
    return TT_OK;
}

const atomic_int *tt_stop_signal(void)
{
    return &received;
}
