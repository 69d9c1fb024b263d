// SPDX-License-Identifier: Apache-2.0
#include "hip/captures.h"

#include <sys/syscall.h>
#include <unistd.h>

#include "core/gate.h"
#include "hooks/hip_calls.h"

namespace gcr {
namespace hip {
namespace {

struct Capture {
    hipStream_t stream;
    bool per_thread;  // how the program named it: the null stream is then its thread's own
    long thread;
    hipStreamCaptureMode mode;
    int device;
};

Lock lock;
Array<Capture> captures;
std::atomic<uint32_t> count{0};  // captures.size(), readable without the lock

long this_thread() {
    return syscall(SYS_gettid);
}

bool same_stream(const Capture& capture, hipStream_t stream, bool per_thread) {
    if (capture.stream != stream || capture.per_thread != per_thread) return false;
    bool thread_own = key_of(stream) == HIP_STREAM_PER_THREAD || (stream == nullptr && per_thread);
    return !thread_own || capture.thread == this_thread();
}

void add(hipStream_t stream, bool per_thread, hipStreamCaptureMode mode) {
    int device = -1;
    real::hipGetDevice(&device);
    Guard guard(lock);
    captures.push({stream, per_thread, this_thread(), mode, device});
    count.store(static_cast<uint32_t>(captures.size()), std::memory_order_seq_cst);
}

template <typename Matches>
void remove(Matches matches) {
    Guard guard(lock);
    for (size_t i = captures.size(); i-- > 0;)
        if (matches(captures[i])) captures.swap_out(i);
    count.store(static_cast<uint32_t>(captures.size()), std::memory_order_seq_cst);
}

hipStreamCaptureMode thread_mode() {
    hipStreamCaptureMode mode = hipStreamCaptureModeRelaxed;
    if (real::hipThreadExchangeStreamCaptureMode(&mode) != hipSuccess) return hipStreamCaptureModeGlobal;
    hipStreamCaptureMode found = mode;
    real::hipThreadExchangeStreamCaptureMode(&mode);
    return found;
}

// The count grows while the call is still in flight: an agent that finds no call in flight finds the capture.
template <typename Begin>
hipError_t begin(hipStream_t stream, bool per_thread, hipStreamCaptureMode mode, Begin call) {
    wait_to_capture();
    hipError_t result = call();
    if (result == hipSuccess) add(stream, per_thread, mode);
    return result;
}

// A failed end may or may not have ended it: the runtime knows.
template <typename End>
hipError_t end(hipStream_t stream, bool per_thread, End call) {
    hipError_t result = call();
    if (result != hipSuccess && is_capturing(stream, per_thread)) return result;
    remove([&](const Capture& capture) { return same_stream(capture, stream, per_thread); });
    return result;
}

}  // namespace

uint32_t captures_in_progress() {
    return count.load(std::memory_order_seq_cst);
}

// As CUDA's: which captures forbid unsafe calls to a thread in which mode.
bool capture_forbids_allocation() {
    if (captures_in_progress() == 0) return false;
    hipStreamCaptureMode mode = thread_mode();
    if (mode == hipStreamCaptureModeRelaxed) return false;
    Guard guard(lock);
    for (const Capture& capture : captures) {
        if (capture.mode == hipStreamCaptureModeRelaxed) continue;
        if (capture.thread == this_thread()) return true;
        if (mode == hipStreamCaptureModeGlobal && capture.mode == hipStreamCaptureModeGlobal) return true;
    }
    return false;
}

bool is_capturing(hipStream_t stream, bool per_thread) {
    hipStreamCaptureStatus status = hipStreamCaptureStatusNone;
    hipError_t asked =
        per_thread ? real::hipStreamIsCapturing_spt(stream, &status) : real::hipStreamIsCapturing(stream, &status);
    return asked == hipSuccess && status != hipStreamCaptureStatusNone;
}

void forget_captures_of(int device) {
    if (captures_in_progress() > 0) remove([&](const Capture& capture) { return capture.device == device; });
}

void forget_captures_on(hipStream_t stream) {
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

hipError_t on_hipStreamBeginCapture(hipStream_t stream, hipStreamCaptureMode mode) {
    return begin(stream, false, mode, [&] { return real::hipStreamBeginCapture(stream, mode); });
}

hipError_t on_hipStreamBeginCapture_spt(hipStream_t stream, hipStreamCaptureMode mode) {
    return begin(stream, true, mode, [&] { return real::hipStreamBeginCapture_spt(stream, mode); });
}

hipError_t on_hipStreamBeginCaptureToGraph(hipStream_t stream, hipGraph_t graph, const hipGraphNode_t* dependencies,
                                           const void* dependencyData, size_t numDependencies,
                                           hipStreamCaptureMode mode) {
    return begin(stream, false, mode, [&] {
        return real::hipStreamBeginCaptureToGraph(stream, graph, dependencies, dependencyData, numDependencies, mode);
    });
}

hipError_t on_hipStreamEndCapture(hipStream_t stream, hipGraph_t* pGraph) {
    return end(stream, false, [&] { return real::hipStreamEndCapture(stream, pGraph); });
}

hipError_t on_hipStreamEndCapture_spt(hipStream_t stream, hipGraph_t* pGraph) {
    return end(stream, true, [&] { return real::hipStreamEndCapture_spt(stream, pGraph); });
}

}  // namespace hip
}  // namespace gcr
