/* Collectives of the simulated NCCL. The stream calls them when it gets there and polls them; each
 * is a short exchange over MPI of its own:
 *     headers   every rank tells every other what it is asked for; they must agree
 *     pieces    rank r gets everybody's r-th piece and adds them in the order of the ranks
 *     results   and sends the sum to all */
#include "nccl_communicator.hpp"

#include "matrix.hpp"

#include <cstdio>
#include <cstring>
#include <ctime>

using simulator_nccl::communicator;

namespace
{
enum { HEADER_TAG = 1, PIECE_TAG, RESULT_TAG };
enum kind : int32_t { all_reduce, broadcast };

const char *const kind_names[] = {"ncclAllReduce", "ncclBroadcast"};

/* What all ranks must ask for alike. */
struct request {
    int64_t count;
    int32_t what, type, operation, root;
};

struct call {
    std::shared_ptr<communicator> comm;
    request asked;
    const void *from;
    void *to;
    cudaStream_t stream;
};

double now()
{
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

size_t element(int32_t type)
{
    return type == ncclFloat64    ? 8
           : type == ncclFloat32  ? 4
           : type == ncclBfloat16 ? 2
           : type == ncclUint8    ? 1
                                  : 0;
}

std::string describe(const request &asked)
{
    const char *type = asked.type == ncclFloat64    ? "float64"
                       : asked.type == ncclFloat32  ? "float32"
                       : asked.type == ncclBfloat16 ? "bfloat16"
                                                    : "uint8";
    std::string text = std::string(kind_names[asked.what]) + " of " + std::to_string(asked.count) +
                       " elements of " + type;
    return text + (asked.what == broadcast      ? ", root " + std::to_string(asked.root)
                   : asked.operation == ncclMax ? ", max"
                                                : ", sum");
}

/* sum = sum + value, or the larger of the two, in the type itself. */
template <typename Number>
void combine(void *sum, const void *values, int64_t count, int32_t operation)
{
    Number *to = static_cast<Number *>(sum);
    const Number *from = static_cast<const Number *>(values);
    for (int64_t i = 0; i < count; i++) {
        to[i] = operation == ncclMax ? (to[i] < from[i] ? from[i] : to[i]) : to[i] + from[i];
    }
}

void combine_bfloat16(void *sum, const void *values, int64_t count, int32_t operation)
{
    uint16_t *to = static_cast<uint16_t *>(sum);
    const uint16_t *from = static_cast<const uint16_t *>(values);
    for (int64_t i = 0; i < count; i++) {
        float a = simulator_bfloat16_to_float(to[i]), b = simulator_bfloat16_to_float(from[i]);
        to[i] = simulator_float_to_bfloat16(operation == ncclMax ? (a < b ? b : a) : a + b);
    }
}

void combine(void *sum, const void *values, int64_t count, const request &asked)
{
    if (asked.type == ncclFloat32) {
        combine<float>(sum, values, count, asked.operation);
    } else if (asked.type == ncclFloat64) {
        combine<double>(sum, values, count, asked.operation);
    } else {
        combine_bfloat16(sum, values, count, asked.operation);
    }
}

/* One run of a collective, from when the stream gets there. */
class run
{
  public:
    explicit run(const call &call);
    /* Whether it has ended, by itself or because the communicator was aborted. */
    bool poll();
    bool is_cut_short() const
    {
        return comm_.aborted();
    }

  private:
    enum step { headers, pieces, results };

    int64_t first(int rank) const
    {
        return call_.asked.count * rank / comm_.size;
    }
    int piece_bytes(int rank) const
    {
        return static_cast<int>((first(rank + 1) - first(rank)) * element_);
    }
    char *piece(int rank)
    {
        return values_.data() + first(rank) * element_;
    }

    void send(int peer, int tag, const void *data, int bytes);
    void receive(int peer, int tag, void *data, int bytes);
    void exchange_headers();
    void compare_headers();
    void exchange_pieces();
    void exchange_results();
    void send_from_root();
    void finish();
    void look_around();

    call call_;
    communicator &comm_;
    int64_t element_, number_;
    step step_ = headers;
    std::vector<request> headers_;
    std::vector<char> values_, parts_; /* host memory: MPI may fill it on any thread */
    std::vector<MPI_Request> requests_;
    double began_, looked_;
    bool complained_ = false;
};

run::run(const call &call)
    : call_(call), comm_(*call.comm), element_(static_cast<int64_t>(element(call.asked.type))),
      number_(++comm_.number), headers_(static_cast<size_t>(comm_.size)),
      values_(static_cast<size_t>(call.asked.count * element_)), began_(now()), looked_(began_)
{
    bool reads = call.asked.what == all_reduce || call.asked.root == comm_.rank;
    if (reads) {
        memcpy(values_.data(), call.from, values_.size());
    }
    exchange_headers();
}

void run::send(int peer, int tag, const void *data, int bytes)
{
    requests_.emplace_back();
    MPI_Isend(data, bytes, MPI_BYTE, peer, tag, comm_.mpi(), &requests_.back());
}

void run::receive(int peer, int tag, void *data, int bytes)
{
    requests_.emplace_back();
    MPI_Irecv(data, bytes, MPI_BYTE, peer, tag, comm_.mpi(), &requests_.back());
}

void run::exchange_headers()
{
    for (int i = 0; i < comm_.size; i++) {
        if (i != comm_.rank) {
            receive(i, HEADER_TAG, &headers_[static_cast<size_t>(i)], sizeof(request));
            send(i, HEADER_TAG, &call_.asked, sizeof(request));
        }
    }
}

void run::compare_headers()
{
    for (int i = 0; i < comm_.size; i++) {
        const request &other = headers_[static_cast<size_t>(i)];
        if (i != comm_.rank && memcmp(&other, &call_.asked, sizeof other) != 0) {
            simulator_fail("collective %lld of the communicator: rank %d calls %s, but rank %d "
                           "calls %s",
                           static_cast<long long>(number_), comm_.rank,
                           describe(call_.asked).c_str(), i, describe(other).c_str());
        }
    }
}

void run::exchange_pieces()
{
    parts_.resize(static_cast<size_t>(piece_bytes(comm_.rank)) * static_cast<size_t>(comm_.size));
    for (int i = 0; i < comm_.size; i++) {
        if (i != comm_.rank) {
            receive(i, PIECE_TAG, parts_.data() + i * piece_bytes(comm_.rank),
                    piece_bytes(comm_.rank));
            send(i, PIECE_TAG, piece(i), piece_bytes(i));
        }
    }
}

void run::exchange_results()
{
    int64_t count = first(comm_.rank + 1) - first(comm_.rank), bytes = piece_bytes(comm_.rank);
    memcpy(parts_.data() + comm_.rank * bytes, piece(comm_.rank), static_cast<size_t>(bytes));
    for (int i = 1; i < comm_.size; i++) {
        combine(parts_.data(), parts_.data() + i * bytes, count, call_.asked);
    }
    memcpy(piece(comm_.rank), parts_.data(), static_cast<size_t>(bytes));
    for (int i = 0; i < comm_.size; i++) {
        if (i != comm_.rank) {
            receive(i, RESULT_TAG, piece(i), piece_bytes(i));
            send(i, RESULT_TAG, piece(comm_.rank), piece_bytes(comm_.rank));
        }
    }
}

void run::send_from_root()
{
    int bytes = static_cast<int>(values_.size()), root = call_.asked.root;
    if (comm_.rank != root) {
        receive(root, RESULT_TAG, values_.data(), bytes);
        return;
    }
    for (int i = 0; i < comm_.size; i++) {
        if (i != root) {
            send(i, RESULT_TAG, values_.data(), bytes);
        }
    }
}

void run::finish()
{
    memcpy(call_.to, values_.data(), values_.size());
    comm_.busy = false;
}

/* While it waits: is anybody it waits for still there? */
void run::look_around()
{
    const double interval = 0.02, long_wait = 60.0;
    double time = now();
    if (time - looked_ < interval) {
        return;
    }
    looked_ = time;
    comm_.look_for_lost_peers();
    if (time - began_ > long_wait && !complained_) {
        complained_ = true;
        fprintf(stderr,
                "simulator: collective %lld of the communicator, %s, waits for its peers "
                "on rank %d since %g s\n",
                static_cast<long long>(number_), describe(call_.asked).c_str(), comm_.rank,
                long_wait);
    }
}

bool run::poll()
{
    if (comm_.aborted()) {
        return true;
    }
    int done = 0;
    if (comm_.error() == ncclSuccess) {
        MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done,
                    MPI_STATUSES_IGNORE);
    }
    if (!done) {
        look_around();
        return false;
    }
    requests_.clear();
    if (step_ == headers) {
        compare_headers();
        step_ = call_.asked.what == broadcast ? results : pieces;
        if (call_.asked.what == broadcast) {
            send_from_root();
        } else {
            exchange_pieces();
        }
        return false;
    }
    if (step_ == pieces) {
        step_ = results;
        exchange_results();
        return false;
    }
    finish();
    return true;
}

/* --- putting calls into streams --- */

/* MPI may still write into the memory of a run that was aborted. */
void keep(const std::shared_ptr<run> &aborted)
{
    static std::mutex mutex;
    static std::vector<std::shared_ptr<run>> kept;
    std::lock_guard<std::mutex> lock(mutex);
    kept.push_back(aborted);
}

std::function<bool()> start(const call &call)
{
    communicator &comm = *call.comm;
    const char *name = kind_names[call.asked.what];
    if (comm.released() && !comm.aborted()) {
        simulator_fail("%s: a graph runs it on a communicator that was destroyed", name);
    }
    if (comm.size == 1 || comm.aborted()) {
        if (call.to != call.from && !comm.aborted()) {
            memcpy(call.to, call.from,
                   static_cast<size_t>(call.asked.count) * element(call.asked.type));
        }
        return nullptr;
    }
    if (comm.busy.exchange(true)) {
        simulator_fail("%s: starts while another collective of the communicator runs; their order "
                       "is not defined",
                       name);
    }
    auto running = std::make_shared<run>(call);
    return [running] {
        if (!running->poll()) {
            return false;
        }
        if (running->is_cut_short()) {
            keep(running);
        }
        return true;
    };
}

thread_local int group_depth;
thread_local std::vector<call> group;

bool is_capturing(cudaStream_t stream)
{
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    cudaStreamIsCapturing(stream, &status);
    return status != cudaStreamCaptureStatusNone;
}

ncclResult_t enqueue(const call &call)
{
    size_t bytes = static_cast<size_t>(call.asked.count) * element(call.asked.type);
    std::vector<simulator_range> ranges;
    if (call.asked.what == all_reduce || call.asked.root == call.comm->rank) {
        ranges.push_back(simulator_reads(call.from, bytes));
    }
    ranges.push_back(simulator_writes(call.to, bytes));
    bool counted = !is_capturing(call.stream);
    if (counted) {
        call.comm->unfinished++;
    }
    cudaError_t error = simulator_enqueue_polled(
        call.stream, kind_names[call.asked.what],
        [call, counted]() -> std::function<bool()> {
            auto poll = start(call);
            if (!poll && counted) {
                call.comm->unfinished--;
            }
            if (!poll || !counted) {
                return poll;
            }
            return [call, poll] {
                bool done = poll();
                call.comm->unfinished -= done;
                return done;
            };
        },
        ranges);
    if (error != cudaSuccess) {
        return call.comm->fail(ncclUnhandledCudaError, "%s: %s", kind_names[call.asked.what],
                               cudaGetErrorString(error));
    }
    if (call.comm->blocking) {
        return ncclSuccess;
    }
    call.comm->pretend_progress();
    return ncclInProgress;
}

ncclResult_t check(const call &call)
{
    const char *name = kind_names[call.asked.what];
    communicator &comm = *call.comm;
    ncclResult_t state = comm.check_ready(name);
    if (state != ncclSuccess) {
        return state;
    }
    bool adds = call.asked.type != ncclUint8 || call.asked.what == broadcast;
    if (element(call.asked.type) == 0 || !adds ||
        (call.asked.operation != ncclSum && call.asked.operation != ncclMax)) {
        simulator_fail("%s: type %d with operation %d is not simulated", name, call.asked.type,
                       call.asked.operation);
    }
    const char *from = static_cast<const char *>(call.from), *to = static_cast<char *>(call.to);
    int64_t bytes = call.asked.count * static_cast<int64_t>(element(call.asked.type));
    bool overlap = from != to && from < to + bytes && to < from + bytes;
    if (call.asked.count < 0 || bytes > INT_MAX || overlap || call.asked.root < 0 ||
        call.asked.root >= comm.size) {
        return comm.fail(ncclInvalidArgument, "%s: %s, from %p to %p", name,
                         describe(call.asked).c_str(), call.from, call.to);
    }
    if (simulator_stream_device(call.stream) != comm.device) {
        return comm.fail(ncclInvalidUsage, "%s: a stream of device %d on a communicator of %d",
                         name, simulator_stream_device(call.stream), comm.device);
    }
    cudaStream_t expected = nullptr;
    if (!comm.stream.compare_exchange_strong(expected, call.stream) && expected != call.stream) {
        return comm.fail(ncclInvalidUsage, "%s: the communicator was used in another stream before",
                         name);
    }
    return ncclSuccess;
}

ncclResult_t accept(ncclComm_t comm, const request &asked, const void *from, void *to,
                    cudaStream_t stream)
{
    if (!comm) {
        return ncclInvalidArgument;
    }
    call call = {comm->inside, asked, from, to, stream};
    ncclResult_t result = check(call);
    if (result != ncclSuccess || asked.count == 0) {
        return result;
    }
    if (group_depth > 0) {
        group.push_back(call);
        return ncclSuccess;
    }
    return enqueue(call);
}
} // namespace

ncclResult_t ncclAllReduce(const void *from, void *to, size_t count, ncclDataType_t type,
                           ncclRedOp_t operation, ncclComm_t comm, cudaStream_t stream)
{
    request asked = {static_cast<int64_t>(count), all_reduce, type, operation, 0};
    return accept(comm, asked, from, to, stream);
}

ncclResult_t ncclBroadcast(const void *from, void *to, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream)
{
    request asked = {static_cast<int64_t>(count), broadcast, type, ncclSum, root};
    return accept(comm, asked, from, to, stream);
}

ncclResult_t ncclGroupStart(void)
{
    group_depth++;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void)
{
    if (group_depth == 0) {
        fprintf(stderr, "simulator: ncclGroupEnd: no group has begun\n");
        return ncclInvalidUsage;
    }
    ncclResult_t result = ncclSuccess;
    if (--group_depth > 0) {
        return result;
    }
    std::vector<call> calls;
    calls.swap(group);
    for (const call &call : calls) {
        ncclResult_t one = enqueue(call);
        if (one != ncclSuccess && (result == ncclSuccess || result == ncclInProgress)) {
            result = one;
        }
    }
    return result;
}
