#include "dist/world.h"

#include <mpi.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Elements in one MPI call, whose counts are ints. */
enum { PIECE = 1 << 26 };

/* Seconds that ending the other ranks may take before the process is ended without it. */
enum { ABORT_SECONDS = 10 };

/* Processes that a launcher says it started: 0 when none speaks. */
static int launched_processes(void)
{
    /* The last is set by srun for whatever it starts, MPI program or not. */
    const char *const names[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE",
                                 "SLURM_STEP_NUM_TASKS"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *value = getenv(names[i]);
        if (value && *value) {
            return (int)strtol(value, NULL, 10);
        }
    }
    return getenv("PMIX_RANK") || getenv("PMI_RANK") ? 1 : 0;
}

static void find_place_on_host(tt_world *world)
{
    MPI_Comm host;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, world->rank, MPI_INFO_NULL, &host);
    MPI_Comm_rank(host, &world->local_rank);
    MPI_Comm_size(host, &world->local_size);
    MPI_Comm_free(&host);
}

tt_status tt_world_join(tt_world *world, tt_error *error)
{
    *world = (tt_world){.size = 1, .local_size = 1};
    gethostname(world->host, sizeof world->host - 1);
    int launched = launched_processes();
    if (launched == 0) {
        return TT_OK;
    }
    int provided;
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided) != MPI_SUCCESS) {
        return tt_error_set(error, TT_PEER_FAILED, "MPI could not be initialised on %s",
                            world->host);
    }
    world->uses_mpi = true;
    MPI_Comm_rank(MPI_COMM_WORLD, &world->rank);
    MPI_Comm_size(MPI_COMM_WORLD, &world->size);
    if (launched > world->size) {
        return tt_error_set(
            error, TT_PEER_FAILED,
            "the launcher started %d processes but MPI sees %d: expected the mpirun "
            "of the MPI that the program is linked with (under Slurm: srun --mpi=pmix, or mpirun "
            "inside the job)",
            launched, world->size);
    }
    find_place_on_host(world);
    return TT_OK;
}

void tt_world_leave(tt_world *world)
{
    if (!world->uses_mpi) {
        return;
    }
    MPI_Barrier(MPI_COMM_WORLD);
    world->uses_mpi = false;
    /* A launcher that was killed takes no part in MPI_Finalize, which then may not come back. */
    if (getppid() != 1) {
        MPI_Finalize();
    }
}

_Noreturn void tt_world_abort(const tt_world *world, int exit_status)
{
    if (world->uses_mpi) {
        fflush(NULL);
        MPI_Abort(MPI_COMM_WORLD, exit_status);
    }
    exit(exit_status);
}

_Noreturn void tt_world_give_up(const tt_world *world, const char *line,
                                void (*release)(void *argument), void *argument)
{
    /* Not through stdio: the thread that is stuck may hold the stream's lock. */
    if (write(STDERR_FILENO, line, strlen(line)) < 0) {
        _exit(EXIT_FAILURE);
    }
    /* MPI may in turn wait for what the stuck thread holds; the alarm ends the process then, and
     * the launcher the others. */
    sigset_t alarm_set;
    sigemptyset(&alarm_set);
    sigaddset(&alarm_set, SIGALRM);
    signal(SIGALRM, SIG_DFL);
    pthread_sigmask(SIG_UNBLOCK, &alarm_set, NULL);
    alarm(ABORT_SECONDS);
    if (release) {
        release(argument);
    }
    if (world->uses_mpi) {
        MPI_Abort(MPI_COMM_WORLD, EXIT_FAILURE);
    }
    _exit(EXIT_FAILURE);
}

tt_status tt_world_agree(const tt_world *world, tt_status status, tt_error *error)
{
    if (world->size == 1) {
        if (status != TT_OK) {
            error->shared = true;
        }
        return status;
    }
    /* The lowest rank that failed; 0 in the second place when a rank did not. */
    int mine[2] = {status == TT_OK ? world->size : world->rank, status != TT_OK}, lowest[2];
    MPI_Allreduce(mine, lowest, 2, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    if (lowest[0] == world->size) {
        return TT_OK;
    }
    if (lowest[0] == world->rank && lowest[1] == 0) {
        tt_error_prefix(error, "rank %d", world->rank);
    }
    MPI_Bcast(error, sizeof *error, MPI_BYTE, lowest[0], MPI_COMM_WORLD);
    error->shared = true;
    return error->status;
}

tt_status tt_world_share(const tt_world *world, tt_status status, tt_error *error)
{
    if (world->size > 1) {
        MPI_Bcast(&status, sizeof status, MPI_BYTE, 0, MPI_COMM_WORLD);
    }
    if (status != TT_OK) {
        tt_world_broadcast(world, error, sizeof *error);
        error->shared = true;
    }
    return status;
}

tt_status tt_world_same(const tt_world *world, const char *what, uint64_t value, tt_error *error)
{
    if (world->size == 1) {
        return TT_OK;
    }
    uint64_t both[2] = {value, ~value}, largest[2];
    MPI_Allreduce(both, largest, 2, MPI_UINT64_T, MPI_MAX, MPI_COMM_WORLD);
    if (largest[0] != ~largest[1]) {
        tt_error_set(error, TT_PEER_FAILED,
                     "the ranks disagree about %s: rank %d on %s has %016llx, another has %016llx",
                     what, world->rank, world->host, (unsigned long long)value,
                     (unsigned long long)(value == largest[0] ? ~largest[1] : largest[0]));
        error->shared = true;
        return TT_PEER_FAILED;
    }
    return TT_OK;
}

void tt_world_sum(const tt_world *world, float *values, int64_t count)
{
    if (world->size == 1) {
        return;
    }
    for (int64_t i = 0; i < count; i += PIECE) {
        int length = (int)(count - i < PIECE ? count - i : PIECE);
        MPI_Allreduce(MPI_IN_PLACE, values + i, length, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    }
}

void tt_world_sum_doubles(const tt_world *world, double *values, int count)
{
    if (world->size > 1) {
        MPI_Allreduce(MPI_IN_PLACE, values, count, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    }
}

void tt_world_broadcast(const tt_world *world, void *bytes, int64_t count)
{
    if (world->size == 1) {
        return;
    }
    for (int64_t i = 0; i < count; i += PIECE) {
        int length = (int)(count - i < PIECE ? count - i : PIECE);
        MPI_Bcast((char *)bytes + i, length, MPI_BYTE, 0, MPI_COMM_WORLD);
    }
}

bool tt_world_any(const tt_world *world, bool value)
{
    int any = value;
    if (world->size > 1) {
        MPI_Allreduce(MPI_IN_PLACE, &any, 1, MPI_INT, MPI_LOR, MPI_COMM_WORLD);
    }
    return any != 0;
}

void tt_world_barrier(const tt_world *world)
{
    if (world->size > 1) {
        MPI_Barrier(MPI_COMM_WORLD);
    }
}

/* --- where the ranks run --- */

typedef struct {
    char *text;
    size_t size, used;
} tt_host_text;

static void append(tt_host_text *list, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void append(tt_host_text *list, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    size_t room = list->size - list->used;
    int length = vsnprintf(list->text + list->used, room, format, arguments);
    va_end(arguments);
    if (length >= 0 && (size_t)length < room) {
        list->used += (size_t)length;
        return;
    }
    list->used = list->size - 1;
    if (list->size >= 4) {
        memcpy(list->text + list->size - 4, "...", 4);
    }
}

/* "0-3, 8" */
static void append_ranks(const char (*hosts)[TT_WORLD_HOST], int count, int first,
                         tt_host_text *list)
{
    const char *between = "";
    for (int i = first; i < count; i++) {
        int last = i;
        if (strcmp(hosts[i], hosts[first]) != 0) {
            continue;
        }
        while (last + 1 < count && strcmp(hosts[last + 1], hosts[first]) == 0) {
            last++;
        }
        if (last > i) {
            append(list, "%s%d-%d", between, i, last);
        } else {
            append(list, "%s%d", between, i);
        }
        between = ", ";
        i = last;
    }
}

int tt_world_list_hosts(const char (*hosts)[TT_WORLD_HOST], int count, char *text, size_t size)
{
    tt_host_text list = {.text = text, .size = size};
    int different = 0;
    text[0] = '\0';
    for (int i = 0; i < count; i++) {
        bool seen = false;
        for (int j = 0; j < i && !seen; j++) {
            seen = strcmp(hosts[j], hosts[i]) == 0;
        }
        if (!seen) {
            append(&list, "%s%s: ", different++ > 0 ? "; " : "", hosts[i]);
            append_ranks(hosts, count, i, &list);
        }
    }
    return different;
}

tt_status tt_world_hosts(const tt_world *world, char *text, size_t size, tt_error *error)
{
    char(*hosts)[TT_WORLD_HOST] = calloc((size_t)world->size, sizeof *hosts);
    text[0] = '\0';
    tt_status status = hosts ? TT_OK
                             : tt_error_set(error, TT_OUT_OF_MEMORY,
                                            "no memory for the names of %d hosts", world->size);
    status = tt_world_agree(world, status, error);
    if (status != TT_OK || hosts == NULL) {
        free(hosts);
        return status;
    }
    memcpy(hosts[0], world->host, sizeof world->host);
    if (world->size > 1) {
        MPI_Gather(world->host, TT_WORLD_HOST, MPI_CHAR, hosts, TT_WORLD_HOST, MPI_CHAR, 0,
                   MPI_COMM_WORLD);
    }
    if (world->rank == 0) {
        tt_world_list_hosts((const char(*)[TT_WORLD_HOST])hosts, world->size, text, size);
    }
    free(hosts);
    return TT_OK;
}
