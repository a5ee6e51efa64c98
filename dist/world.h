/* The processes of a run. Under mpirun (or another launcher that speaks MPI) the world is
 * MPI_COMM_WORLD; started alone, the program is a world of one and MPI is never initialised.
 *
 * Every rank calls the same functions in the same order; that order is the only protocol. A rank
 * that cannot go on calls tt_world_abort, which ends all others within seconds. */
#ifndef TT_DIST_WORLD_H
#define TT_DIST_WORLD_H

#include "core/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TT_WORLD_HOST = 64 }; /* bytes of a host's name, the final 0 included */

typedef struct {
    int rank, size;
    int local_rank, local_size; /* among the ranks of this machine */
    char host[TT_WORLD_HOST];
    bool uses_mpi;
} tt_world;

/* Joins the world. Fails when a launcher's environment says there are several processes but MPI
 * sees one (a program started by another MPI's mpirun), rather than training as many separate runs.
 */
tt_status tt_world_join(tt_world *world, tt_error *error);
/* Waits for all ranks and leaves. Nothing may be called after. */
void tt_world_leave(tt_world *world);
/* Ends every rank of the job with this exit status; does not return. */
_Noreturn void tt_world_abort(const tt_world *world, int exit_status);
/* The same with status 1 from any thread, while the main one may be stuck for good, also in MPI or
 * with the lock of stderr: writes `line`, newline included, and ends this process within seconds
 * even if MPI does not come back. `release` (may be NULL) is called in between, to free what holds
 * the peers; it may hang. */
_Noreturn void tt_world_give_up(const tt_world *world, const char *line,
                                void (*release)(void *argument), void *argument);

/* Set-up steps can fail on one rank alone. Every rank passes the status of its own step; if all are
 * TT_OK so is the result. Otherwise every rank gets the status and message of the lowest rank that
 * failed, with "rank N: " in front unless all failed. */
tt_status tt_world_agree(const tt_world *world, tt_status status, tt_error *error);
/* What rank 0 alone does can fail, too: every rank gets its status and message. The others' own
 * `status` does not count. */
tt_status tt_world_share(const tt_world *world, tt_status status, tt_error *error);

/* Checks that `value` is the same on every rank; `what` names it in the error. */
tt_status tt_world_same(const tt_world *world, const char *what, uint64_t value, tt_error *error);

/* values[i] = sum over ranks, on every rank the same bits. Host memory. */
void tt_world_sum(const tt_world *world, float *values, int64_t count);
void tt_world_sum_doubles(const tt_world *world, double *values, int count);
/* Rank 0's bytes for everybody. */
void tt_world_broadcast(const tt_world *world, void *bytes, int64_t count);
/* True on every rank when it is true on any. */
bool tt_world_any(const tt_world *world, bool value);
void tt_world_barrier(const tt_world *world);

/* Writes where the ranks run, "node1: 0-3; node2: 4-7", on rank 0, and "" elsewhere. A list that
 * does not fit ends in "...". All ranks call it together. */
tt_status tt_world_hosts(const tt_world *world, char *text, size_t size, tt_error *error);
/* The same from the hosts' names, rank by rank; returns how many different ones there are. */
int tt_world_list_hosts(const char (*hosts)[TT_WORLD_HOST], int count, char *text, size_t size);

#endif
