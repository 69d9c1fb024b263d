// SPDX-License-Identifier: Apache-2.0
#include "hip/captures.h"

#include "device/pools.h"
#include "hooks/hip_calls.h"

namespace gcr {
namespace hip {
namespace {

static_assert(uint32_t{hipStreamCaptureModeGlobal} == uint32_t{device::kCaptureGlobal}, "passed on as it is");
static_assert(uint32_t{hipStreamCaptureModeRelaxed} == uint32_t{device::kCaptureRelaxed}, "passed on as it is");

device::CapturedStream named(hipStream_t stream, bool per_thread) {
    bool own = key_of(stream) == HIP_STREAM_PER_THREAD || (stream == nullptr && per_thread);
    return {key_of(stream), per_thread && stream == nullptr, own};
}

uint64_t current_device() {
    int device = -1;
    real::hipGetDevice(&device);
    return static_cast<uint64_t>(device);
}

hipStreamCaptureMode thread_mode() {
    hipStreamCaptureMode mode = hipStreamCaptureModeRelaxed;
    if (real::hipThreadExchangeStreamCaptureMode(&mode) != hipSuccess) return hipStreamCaptureModeGlobal;
    hipStreamCaptureMode found = mode;
    real::hipThreadExchangeStreamCaptureMode(&mode);
    return found;
}

template <typename Begin>
hipError_t begin(hipStream_t stream, bool per_thread, hipStreamCaptureMode mode, Begin call) {
    device::settle_pools(state);
    return state.captures.begin(state.settling, named(stream, per_thread), mode, current_device, call);
}

template <typename End>
hipError_t end(hipStream_t stream, bool per_thread, End call) {
    return state.captures.end(named(stream, per_thread), [&] { return is_capturing(stream, per_thread); }, call);
}

}  // namespace

uint32_t captures_in_progress() {
    return state.captures.count();
}

bool capture_forbids_allocation() {
    return captures_in_progress() > 0 && state.captures.forbid(thread_mode());
}

bool is_capturing(hipStream_t stream, bool per_thread) {
    hipStreamCaptureStatus status = hipStreamCaptureStatusNone;
    hipError_t asked =
        per_thread ? real::hipStreamIsCapturing_spt(stream, &status) : real::hipStreamIsCapturing(stream, &status);
    return asked == hipSuccess && status != hipStreamCaptureStatusNone;
}

bool may_capture(hipStream_t stream) {
    if (captures_in_progress() == 0) return false;
    hipStreamCaptureStatus status = hipStreamCaptureStatusNone;
    return real::hipStreamIsCapturing(stream, &status) != hipSuccess || status != hipStreamCaptureStatusNone;
}

RelaxedMode::RelaxedMode() : changed_(real::hipThreadExchangeStreamCaptureMode(&mode_) == hipSuccess) {}

RelaxedMode::~RelaxedMode() {
    if (changed_) real::hipThreadExchangeStreamCaptureMode(&mode_);
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
