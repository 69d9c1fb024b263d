// SPDX-License-Identifier: Apache-2.0
#include "cuda/captures.h"

#include "cuda/driver.h"
#include "device/pools.h"
#include "hooks/cuda_calls.h"

namespace gcr {
namespace cuda {
namespace {

static_assert(uint32_t{CU_STREAM_CAPTURE_MODE_GLOBAL} == uint32_t{device::kCaptureGlobal}, "passed on as it is");
static_assert(uint32_t{CU_STREAM_CAPTURE_MODE_RELAXED} == uint32_t{device::kCaptureRelaxed}, "passed on as it is");

device::CapturedStream named(CUstream stream, bool per_thread) {
    bool own = stream == per_thread_stream() || (stream == nullptr && per_thread);
    return {reinterpret_cast<uint64_t>(stream), per_thread && stream == nullptr, own};
}

uint64_t current_owner() {
    CUcontext context = nullptr;
    real::cuCtxGetCurrent(&context);
    return reinterpret_cast<uint64_t>(context);
}

CUstreamCaptureMode thread_mode() {
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    if (real::cuThreadExchangeStreamCaptureMode(&mode) != CUDA_SUCCESS) return CU_STREAM_CAPTURE_MODE_GLOBAL;
    CUstreamCaptureMode found = mode;
    real::cuThreadExchangeStreamCaptureMode(&mode);
    return found;
}

CUresult ask_status(CUstream stream, bool per_thread, CUstreamCaptureStatus* status) {
    return per_thread ? real::cuStreamIsCapturing_ptsz(stream, status) : real::cuStreamIsCapturing(stream, status);
}

template <typename Begin>
CUresult begin(CUstream stream, bool per_thread, CUstreamCaptureMode mode, Begin call) {
    device::settle_pools(state);
    return state.captures.begin(state.settling, named(stream, per_thread), mode, current_owner, call);
}

template <typename End>
CUresult end(CUstream stream, bool per_thread, End call) {
    return state.captures.end(named(stream, per_thread), [&] { return is_capturing(stream, per_thread); }, call);
}

}  // namespace

uint32_t captures_in_progress() {
    return state.captures.count();
}

bool capture_forbids_allocation() {
    return captures_in_progress() > 0 && state.captures.forbid(thread_mode());
}

bool is_capturing(CUstream stream, bool per_thread) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    return ask_status(stream, per_thread, &status) == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE;
}

bool may_capture(CUstream stream, bool per_thread) {
    if (captures_in_progress() == 0) return false;
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    return ask_status(stream, per_thread, &status) != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE;
}

RelaxedMode::RelaxedMode() : changed_(real::cuThreadExchangeStreamCaptureMode(&mode_) == CUDA_SUCCESS) {}

RelaxedMode::~RelaxedMode() {
    if (changed_) real::cuThreadExchangeStreamCaptureMode(&mode_);
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
