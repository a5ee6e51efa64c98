/* Communicators of the simulated NCCL: who takes part, whether they are alive, and what has gone
 * wrong. nccl_communicator.cpp makes them, nccl.cpp runs collectives on them. */
#ifndef TT_SIMULATOR_NCCL_COMMUNICATOR_HPP
#define TT_SIMULATOR_NCCL_COMMUNICATOR_HPP

#include "nccl.h"
#include "simulator_runtime.hpp"

#include <atomic>
#include <memory>
#define OMPI_SKIP_MPICXX 1 /* the C interface alone */
#include <mpi.h>
#include <mutex>
#include <string>

namespace simulator_nccl
{

/* What each rank tells the others when they meet. */
struct member {
    uint64_t id; /* hash of the unique id */
    int32_t process, device, version, unused;
    char host[64];
    char bus[32]; /* PCI address of the device */
};

class communicator
{
  public:
    communicator(int size, int rank, uint64_t id, bool blocking);

    const int size, rank, device;
    const bool blocking;

    /* Moves the set-up on; what ncclCommGetAsyncError says. Any thread. */
    ncclResult_t state();
    /* What went wrong; ncclSuccess while it is set up and after. */
    ncclResult_t error();
    /* Fails unless state() has said ncclSuccess since the last call. */
    ncclResult_t check_ready(const char *call);
    /* Notes what went wrong first; ncclCommGetAsyncError says so from then on. */
    ncclResult_t fail(ncclResult_t result, const char *format, ...)
        __attribute__((format(printf, 3, 4)));
    std::string last_error();
    /* The next state() says ncclInProgress once, as after a call on a communicator that does not
     * block. */
    void pretend_progress();

    /* Ends what runs on it, here and, with an error, at the peers. */
    void abort();
    bool aborted() const
    {
        return aborted_;
    }
    /* Gives back what the set-up took. */
    void release();
    bool released() const
    {
        return released_;
    }

    /* Looks for peers that died or aborted; on this host, by their process ids. */
    void look_for_lost_peers();

    MPI_Comm mpi() const
    {
        return mpi_;
    }
    std::string name_of(int member_rank) const;

    /* Collectives take one stream, one after the other. */
    std::atomic<cudaStream_t> stream{nullptr};
    std::atomic<bool> busy{false};
    std::atomic<int64_t> unfinished{
        0};             /* put into a stream (captured ones left out) and not done */
    int64_t number = 0; /* collectives begun; of the one that runs */

  private:
    enum step { meeting, introducing, ready };

    void advance();
    void check_members();

    std::mutex mutex_;
    step step_ = meeting;
    MPI_Comm mpi_ = MPI_COMM_NULL;
    MPI_Request request_ = MPI_REQUEST_NULL;
    member own_ = {};
    std::vector<member> members_;
    ncclResult_t error_ = ncclSuccess;
    std::string last_error_;
    int pretended_ = 0;
    std::atomic<bool> aborted_{false}, released_{false};
};

} // namespace simulator_nccl

/* What the interface hands out; outlived by the communicator where a graph still holds that. */
struct ncclComm {
    std::shared_ptr<simulator_nccl::communicator> inside;
};

#endif
