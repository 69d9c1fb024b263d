// SPDX-License-Identifier: Apache-2.0
#include "cuda/captures.h"

#include <sys/syscall.h>
#include <unistd.h>

#include "core/gate.h"
#include "cuda/driver.h"
#include "hooks/cuda_calls.h"

namespace gcr {
namespace cuda {
namespace {

struct Capture {
    CUstream stream;
    bool per_thread;  // how the program named it: handle 0 is then its thread's own stream
    long thread;
    CUstreamCaptureMode mode;
    CUcontext context;
};

Lock lock;
Array<Capture> captures;
std::atomic<uint32_t> count{0};  // captures.size(), readable without the lock

long this_thread() {
    return syscall(SYS_gettid);
}

bool same_stream(const Capture& capture, CUstream stream, bool per_thread) {
    if (capture.stream != stream || capture.per_thread != per_thread) return false;
    bool thread_own = stream == per_thread_stream() || (stream == nullptr && per_thread);
    return !thread_own || capture.thread == this_thread();
}

void add(CUstream stream, bool per_thread, CUstreamCaptureMode mode) {
    CUcontext context = nullptr;
    real::cuCtxGetCurrent(&context);
    Guard guard(lock);
    captures.push({stream, per_thread, this_thread(), mode, context});
    count.store(static_cast<uint32_t>(captures.size()), std::memory_order_seq_cst);
}

template <typename Matches>
void remove(Matches matches) {
    Guard guard(lock);
    for (size_t i = captures.size(); i-- > 0;)
        if (matches(captures[i])) captures.swap_out(i);
    count.store(static_cast<uint32_t>(captures.size()), std::memory_order_seq_cst);
}

CUstreamCaptureMode thread_mode() {
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    if (real::cuThreadExchangeStreamCaptureMode(&mode) != CUDA_SUCCESS) return CU_STREAM_CAPTURE_MODE_GLOBAL;
    CUstreamCaptureMode found = mode;
    real::cuThreadExchangeStreamCaptureMode(&mode);
    return found;
}

// The count grows while the call is still in flight: an agent that finds no call in flight finds the capture.
template <typename Begin>
CUresult begin(CUstream stream, bool per_thread, CUstreamCaptureMode mode, Begin call) {
    wait_to_capture();
    CUresult result = call();
    if (result == CUDA_SUCCESS) add(stream, per_thread, mode);
    return result;
}

// A failed end may or may not have ended it: the driver knows.
template <typename End>
CUresult end(CUstream stream, bool per_thread, End call) {
    CUresult result = call();
    if (result != CUDA_SUCCESS && is_capturing(stream, per_thread)) return result;
    remove([&](const Capture& capture) { return same_stream(capture, stream, per_thread); });
    return result;
}

}  // namespace

uint32_t captures_in_progress() {
    return count.load(std::memory_order_seq_cst);
}

// CUDA driver API, cuThreadExchangeStreamCaptureMode: which captures forbid unsafe calls to a thread in which mode.
bool capture_forbids_allocation() {
    if (captures_in_progress() == 0) return false;
    CUstreamCaptureMode mode = thread_mode();
    if (mode == CU_STREAM_CAPTURE_MODE_RELAXED) return false;
    Guard guard(lock);
    for (const Capture& capture : captures) {
        if (capture.mode == CU_STREAM_CAPTURE_MODE_RELAXED) continue;
        if (capture.thread == this_thread()) return true;
        if (mode == CU_STREAM_CAPTURE_MODE_GLOBAL && capture.mode == CU_STREAM_CAPTURE_MODE_GLOBAL) return true;
    }
    return false;
}

bool is_capturing(CUstream stream, bool per_thread) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult asked =
        per_thread ? real::cuStreamIsCapturing_ptsz(stream, &status) : real::cuStreamIsCapturing(stream, &status);
    return asked == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE;
}

void forget_captures_of(CUcontext context) {
    if (captures_in_progress() > 0) remove([&](const Capture& capture) { return capture.context == context; });
}

void forget_captures_on(CUstream stream) {
    if (captures_in_progress() > 0) remove([&](const Capture& capture) { return capture.stream == stream; });
}

void forget_captures_after_fork() {
    lock.reset_after_fork();
    captures.clear();
    count.store(0, std::memory_order_seq_cst);
}

Lock& capture_lock() {
    return lock;
}

// ---- the program's calls ------------------------------------------------------------------------------------------

CUresult on_cuStreamBeginCapture(CUstream hStream) {
    return begin(hStream, false, CU_STREAM_CAPTURE_MODE_GLOBAL, [&] { return real::cuStreamBeginCapture(hStream); });
}

CUresult on_cuStreamBeginCapture_ptsz(CUstream hStream) {
    return begin(hStream, true, CU_STREAM_CAPTURE_MODE_GLOBAL,
                 [&] { return real::cuStreamBeginCapture_ptsz(hStream); });
}

CUresult on_cuStreamBeginCapture_v2(CUstream hStream, CUstreamCaptureMode mode) {
    return begin(hStream, false, mode, [&] { return real::cuStreamBeginCapture_v2(hStream, mode); });
}

CUresult on_cuStreamBeginCapture_v2_ptsz(CUstream hStream, CUstreamCaptureMode mode) {
    return begin(hStream, true, mode, [&] { return real::cuStreamBeginCapture_v2_ptsz(hStream, mode); });
}

CUresult on_cuStreamBeginCaptureToGraph(CUstream hStream, CUgraph hGraph, const CUgraphNode* dependencies,
                                        const CUgraphEdgeData* dependencyData, size_t numDependencies,
                                        CUstreamCaptureMode mode) {
    return begin(hStream, false, mode, [&] {
        return real::cuStreamBeginCaptureToGraph(hStream, hGraph, dependencies, dependencyData, numDependencies, mode);
    });
}

CUresult on_cuStreamBeginCaptureToGraph_ptsz(CUstream hStream, CUgraph hGraph, const CUgraphNode* dependencies,
                                             const CUgraphEdgeData* dependencyData, size_t numDependencies,
                                             CUstreamCaptureMode mode) {
    return begin(hStream, true, mode, [&] {
        return real::cuStreamBeginCaptureToGraph_ptsz(hStream, hGraph, dependencies, dependencyData, numDependencies,
                                                      mode);
    });
}

CUresult on_cuStreamBeginRecaptureToGraph(CUstream hStream, CUstreamCaptureMode mode, CUgraph hGraph,
                                          CUgraphRecaptureCallback callbackFunc, void* userData) {
    return begin(hStream, false, mode,
                 [&] { return real::cuStreamBeginRecaptureToGraph(hStream, mode, hGraph, callbackFunc, userData); });
}

CUresult on_cuStreamBeginRecaptureToGraph_ptsz(CUstream hStream, CUstreamCaptureMode mode, CUgraph hGraph,
                                               CUgraphRecaptureCallback callbackFunc, void* userData) {
    return begin(hStream, true, mode, [&] {
        return real::cuStreamBeginRecaptureToGraph_ptsz(hStream, mode, hGraph, callbackFunc, userData);
    });
}

CUresult on_cuStreamBeginCaptureToCig(CUstream hStream, CUstreamCigCaptureParams* streamCigCaptureParams) {
    return begin(hStream, false, CU_STREAM_CAPTURE_MODE_RELAXED,
                 [&] { return real::cuStreamBeginCaptureToCig(hStream, streamCigCaptureParams); });
}

CUresult on_cuStreamBeginCaptureToCig_ptsz(CUstream hStream, CUstreamCigCaptureParams* streamCigCaptureParams) {
    return begin(hStream, true, CU_STREAM_CAPTURE_MODE_RELAXED,
                 [&] { return real::cuStreamBeginCaptureToCig_ptsz(hStream, streamCigCaptureParams); });
}

CUresult on_cuStreamEndCapture(CUstream hStream, CUgraph* phGraph) {
    return end(hStream, false, [&] { return real::cuStreamEndCapture(hStream, phGraph); });
}

CUresult on_cuStreamEndCapture_ptsz(CUstream hStream, CUgraph* phGraph) {
    return end(hStream, true, [&] { return real::cuStreamEndCapture_ptsz(hStream, phGraph); });
}

CUresult on_cuStreamEndCaptureToCig(CUstream hStream) {
    return end(hStream, false, [&] { return real::cuStreamEndCaptureToCig(hStream); });
}

CUresult on_cuStreamEndCaptureToCig_ptsz(CUstream hStream) {
    return end(hStream, true, [&] { return real::cuStreamEndCaptureToCig_ptsz(hStream); });
}

}  // namespace cuda
}  // namespace gcr
