/* Stream capture and graphs. A capture records work as nodes that follow one another as the streams
 * and events say; a launch puts all nodes to work in that order, in lanes of the graph's own. */
#include "runtime.hpp"

#include <algorithm>

struct CUgraph_st {
    std::vector<simulator::node> nodes;
    int lines;
};

struct CUgraphExec_st {
    std::vector<simulator::node> nodes;
    std::vector<int> lanes; /* of each captured stream */
    simulator::operation_ptr last;
};

namespace simulator
{

namespace
{

std::vector<capture *> &captures()
{
    static auto *kept = new std::vector<capture *>;
    return *kept;
}

int graphs = 0;
thread_local cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;

int line_of(const capture &in, const CUstream_st *stream)
{
    const auto found = std::find(in.streams.begin(), in.streams.end(), stream);
    return static_cast<int>(found - in.streams.begin());
}

cudaError_t invalidate(capture *of, cudaError_t status, const char *call, const char *why)
{
    of->invalid = true;
    return refuse(status, "%s during capture: %s; the capture is invalid", call, why);
}

/* The capture that forbids what is unsafe in any capture, for the calling thread. */
capture *forbidding()
{
    if (thread_mode == cudaStreamCaptureModeRelaxed) {
        return nullptr;
    }
    for (capture *one : captures()) {
        const bool own = one->owner == std::this_thread::get_id();
        if (one->mode == cudaStreamCaptureModeGlobal ||
            (one->mode == cudaStreamCaptureModeThreadLocal && own)) {
            if (own || thread_mode == cudaStreamCaptureModeGlobal) {
                return one;
            }
        }
    }
    return nullptr;
}

cudaError_t forbid(const char *call)
{
    capture *by = forbidding();
    return by == nullptr ? cudaSuccess
                         : invalidate(by, cudaErrorStreamCaptureUnsupported, call,
                                      "it is not permitted while a stream captures");
}

void end(capture *of)
{
    for (CUstream_st *stream : of->streams) {
        stream->capture = nullptr;
        stream->capture_tail.clear();
    }
    captures().erase(std::find(captures().begin(), captures().end(), of));
    of->ended = true;
}

/* Every node must lead to the end of the origin stream. */
bool joined(const capture &of)
{
    std::vector<bool> reached(of.nodes.size());
    std::vector<int> open = of.origin->capture_tail;
    while (!open.empty()) {
        const size_t node = static_cast<size_t>(open.back());
        open.pop_back();
        if (!reached[node]) {
            reached[node] = true;
            open.insert(open.end(), of.nodes[node].after.begin(), of.nodes[node].after.end());
        }
    }
    return std::find(reached.begin(), reached.end(), false) == reached.end();
}

work_ptr marker(const char *name, simulator_kind kind, bool counted)
{
    auto made = std::make_shared<work>();
    made->kind = kind;
    made->name = name;
    made->counted = counted;
    made->marker = true;
    return made;
}

void launch_nodes(CUgraphExec_st *graph, CUstream_st *stream)
{
    static const work_ptr begin_mark = marker("graph launch", SIMULATOR_GRAPH, true);
    static const work_ptr end_mark = marker("end of graph", SIMULATOR_GRAPH, false);
    std::vector<operation_ptr> before = stream_order(stream);
    if (graph->last != nullptr) {
        before.push_back(graph->last); /* launches of one graph run one after the other */
    }
    const operation_ptr first = put(begin_mark, stream->lane, before);
    std::vector<operation_ptr> made;
    std::vector<bool> followed(graph->nodes.size());
    for (const node &one : graph->nodes) {
        std::vector<operation_ptr> follows;
        for (int index : one.after) {
            follows.push_back(made[static_cast<size_t>(index)]);
            followed[static_cast<size_t>(index)] = true;
        }
        if (follows.empty()) {
            follows.push_back(first);
        }
        made.push_back(put(one.what, graph->lanes[static_cast<size_t>(one.line)], follows));
    }
    std::vector<operation_ptr> leaves = {first};
    for (size_t i = 0; i < made.size(); i++) {
        if (!followed[i]) {
            leaves.push_back(made[i]);
        }
    }
    graph->last = put(end_mark, stream->lane, leaves);
    set_stream_tail(stream, graph->last);
}

} // namespace

int live_graphs()
{
    guard held(state);
    return graphs;
}

cudaError_t forbidden(const char *call)
{
    guard held(state);
    return forbid(call);
}

cudaError_t forbidden_on(CUstream_st *stream, const char *call)
{
    if (stream->capture != nullptr) {
        return invalidate(stream->capture, cudaErrorStreamCaptureUnsupported, call,
                          "the stream is being captured");
    }
    return forbid(call);
}

cudaError_t forbidden_in(cudaStream_t stream, const char *call, const char *why)
{
    guard held(state);
    const CUstream_st *of = resolve(stream);
    if (of != nullptr && of->capture != nullptr) {
        return invalidate(of->capture, cudaErrorStreamCaptureUnsupported, call, why);
    }
    return cudaSuccess;
}

cudaError_t forbidden_on_event(CUevent_st *event, const char *call)
{
    if (event->capture != nullptr) {
        return refuse(cudaErrorCapturedEvent, "%s: the event was recorded in a capture", call);
    }
    return forbid(call);
}

cudaError_t forbidden_on_legacy(const char *call)
{
    for (capture *one : captures()) {
        if (one->mode != cudaStreamCaptureModeRelaxed && one->origin->blocking) {
            return invalidate(one, cudaErrorStreamCaptureImplicit, call,
                              "it would order the legacy stream with a captured one");
        }
    }
    return cudaSuccess;
}

cudaError_t capture_work(CUstream_st *stream, work_ptr what)
{
    capture *of = stream->capture;
    if (of->invalid) {
        return cudaErrorStreamCaptureInvalidated;
    }
    of->nodes.push_back({std::move(what), stream->capture_tail, line_of(*of, stream)});
    stream->capture_tail = {static_cast<int>(of->nodes.size()) - 1};
    return cudaSuccess;
}

cudaError_t capture_record(CUstream_st *stream, CUevent_st *event)
{
    if (stream->capture->invalid) {
        return cudaErrorStreamCaptureInvalidated;
    }
    event->capture = stream->capture;
    event->capture_number = stream->capture->number;
    event->nodes = stream->capture_tail;
    event->last = nullptr;
    return cudaSuccess;
}

cudaError_t capture_wait(CUstream_st *stream, CUevent_st *event)
{
    capture *of = stream->capture;
    const bool live =
        event->capture != nullptr &&
        std::find(captures().begin(), captures().end(), event->capture) != captures().end() &&
        event->capture->number == event->capture_number;
    if (event->capture == nullptr || !live) {
        if (of == nullptr) {
            return refuse(
                cudaErrorCapturedEvent,
                "cudaStreamWaitEvent: the event was recorded in a capture that has ended");
        }
        return event->last == nullptr && event->capture == nullptr
                   ? cudaSuccess
                   : invalidate(of, cudaErrorStreamCaptureIsolation, "cudaStreamWaitEvent",
                                "the event was recorded outside of it");
    }
    if (of != nullptr && of != event->capture) {
        return invalidate(of, cudaErrorStreamCaptureMerge, "cudaStreamWaitEvent",
                          "the event belongs to another capture");
    }
    if (event->capture->invalid) {
        return cudaErrorStreamCaptureInvalidated;
    }
    if (of == nullptr) {
        if (stream->legacy) {
            return invalidate(event->capture, cudaErrorStreamCaptureImplicit, "cudaStreamWaitEvent",
                              "the legacy stream cannot be captured");
        }
        stream->capture = event->capture;
        stream->capture->streams.push_back(stream);
    }
    for (int index : event->nodes) {
        if (std::find(stream->capture_tail.begin(), stream->capture_tail.end(), index) ==
            stream->capture_tail.end()) {
            stream->capture_tail.push_back(index);
        }
    }
    return cudaSuccess;
}

} // namespace simulator

using namespace simulator;

cudaError_t simulator_forbidden_in_capture(const char *call)
{
    return forbidden(call);
}

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode)
{
    static uint64_t numbers = 0;
    guard held(state);
    CUstream_st *of = resolve(stream);
    if (of == nullptr) {
        return cudaErrorInvalidResourceHandle;
    }
    if (of->legacy) {
        return refuse(cudaErrorStreamCaptureUnsupported,
                      "cudaStreamBeginCapture: the legacy stream cannot be captured");
    }
    if (of->capture != nullptr) {
        return refuse(cudaErrorIllegalState,
                      "cudaStreamBeginCapture: the stream is being captured already");
    }
    auto *made = new capture{};
    made->number = ++numbers;
    made->origin = of;
    made->mode = mode;
    made->owner = std::this_thread::get_id();
    made->streams.push_back(of);
    of->capture = made;
    /* What the stream waits for outside stays in front of the first launch. */
    of->capture_tail.clear();
    captures().push_back(made);
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    guard held(state);
    *graph = nullptr;
    CUstream_st *of = resolve(stream);
    if (of == nullptr) {
        return cudaErrorInvalidResourceHandle;
    }
    capture *taken = of->capture;
    if (taken == nullptr) {
        return refuse(cudaErrorIllegalState, "cudaStreamEndCapture: the stream is not captured");
    }
    if (taken->origin != of) {
        return invalidate(taken, cudaErrorStreamCaptureUnmatched, "cudaStreamEndCapture",
                          "it began in another stream");
    }
    if (taken->owner != std::this_thread::get_id() && taken->mode != cudaStreamCaptureModeRelaxed) {
        return invalidate(taken, cudaErrorStreamCaptureWrongThread, "cudaStreamEndCapture",
                          "it began in another thread");
    }
    cudaError_t status = cudaSuccess;
    if (taken->invalid) {
        status = result(cudaErrorStreamCaptureInvalidated);
    } else if (!joined(*taken)) {
        status = refuse(cudaErrorStreamCaptureUnjoined,
                        "cudaStreamEndCapture: work of another stream was not joined by an event");
    } else {
        *graph = new CUgraph_st{taken->nodes, static_cast<int>(taken->streams.size())};
        graphs++;
    }
    end(taken);
    delete taken;
    return status;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus *status)
{
    guard held(state);
    const CUstream_st *of = resolve(stream);
    if (of == nullptr) {
        return cudaErrorInvalidResourceHandle;
    }
    *status = cudaStreamCaptureStatusNone;
    if (of->capture != nullptr) {
        *status = of->capture->invalid ? cudaStreamCaptureStatusInvalidated
                                       : cudaStreamCaptureStatusActive;
    }
    return cudaSuccess;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode *mode)
{
    std::swap(*mode, thread_mode);
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *executable, cudaGraph_t graph,
                                 unsigned long long flags)
{
    (void)flags;
    guard held(state);
    if (graph == nullptr) {
        return result(cudaErrorInvalidValue);
    }
    auto *made = new CUgraphExec_st{};
    made->nodes = graph->nodes;
    for (int line = 0; line < graph->lines; line++) {
        made->lanes.push_back(new_lane());
    }
    *executable = made;
    graphs++;
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *executable, cudaGraph_t graph,
                                          unsigned long long flags)
{
    return cudaGraphInstantiate(executable, graph, flags);
}

cudaError_t cudaGraphUpload(cudaGraphExec_t executable, cudaStream_t stream)
{
    (void)stream;
    return result(executable != nullptr ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream)
{
    guard held(state);
    CUstream_st *to = resolve(stream);
    if (to == nullptr || executable == nullptr) {
        return result(cudaErrorInvalidResourceHandle);
    }
    if (to->capture != nullptr) {
        return invalidate(to->capture, cudaErrorStreamCaptureUnsupported, "cudaGraphLaunch",
                          "graphs inside graphs are not simulated");
    }
    launch_nodes(executable, to);
    return cudaSuccess;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count)
{
    if (graph == nullptr || nodes != nullptr) {
        return result(cudaErrorInvalidValue);
    }
    *count = graph->nodes.size();
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable)
{
    guard held(state);
    if (executable == nullptr) {
        return result(cudaErrorInvalidValue);
    }
    delete executable;
    graphs--;
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    guard held(state);
    if (graph == nullptr) {
        return result(cudaErrorInvalidValue);
    }
    delete graph;
    graphs--;
    return cudaSuccess;
}

} /* extern "C" */
