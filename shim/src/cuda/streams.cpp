// SPDX-License-Identifier: Apache-2.0
#include "cuda/streams.h"

#include "cuda/captures.h"
#include "cuda/driver.h"
#include "cuda/stream_order.h"
#include "device/pools.h"
#include "device/streams.h"
#include "hooks/cuda_calls.h"

namespace gcr {
namespace cuda {
namespace {

using device::FoundStream;
using device::stream_from;

CUresult recorded(CUresult result, const CUstream* stream) {
    if (result != CUDA_SUCCESS) return result;
    CUcontext context = nullptr;
    CUdevice device = 0;
    real::cuCtxGetCurrent(&context);
    real::cuCtxGetDevice(&device);
    device::record_stream(state, reinterpret_cast<uint64_t>(*stream), reinterpret_cast<uint64_t>(context), device);
    return result;
}

// A copy: contexts may come and go while the driver is called.
struct Contexts {
    static constexpr uint32_t kLimit = 64;
    uint32_t count = 0;
    CUcontext handles[kLimit];
};

Contexts all_contexts() {
    Contexts all;
    Guard guard(state.lock);
    for (const Context* context : state.contexts)
        if (all.count < Contexts::kLimit) all.handles[all.count++] = context->handle;
    return all;
}

void report_default_stream(CUcontext handle, wire::StuckRecord* records, uint32_t* count) {
    PinnedContext context(handle);
    if (context.handle() == nullptr || captures_in_progress() > 0) return;  // asking would break a capture
    CurrentContext scope(handle);
    if (real::cuStreamQuery(nullptr) != CUDA_ERROR_NOT_READY) return;
    records[(*count)++] = {0, reinterpret_cast<uint64_t>(handle), static_cast<uint32_t>(context.device()), 0};
}

template <typename Destroy>
CUresult destroy(CUstream stream, Destroy call) {
    uint64_t handle = reinterpret_cast<uint64_t>(stream), id = 0;
    bool left = device::leave_stream(state, handle, &id);
    CUresult result = device::destroy_stream(state, handle, call);
    if (left && result != CUDA_SUCCESS) device::return_to_stream(state, id);
    return result;
}

}  // namespace

Failure synchronize_contexts() {
    Contexts all = all_contexts();
    for (uint32_t i = 0; i < all.count; i++) {
        PinnedContext context(all.handles[i]);
        if (context.handle() == nullptr) continue;  // destroyed meanwhile
        CurrentContext scope(context.handle());
        CUresult result = real::cuCtxSynchronize();
        if (result != CUDA_SUCCESS) return {wire::kDriver, result, "failed", "cuCtxSynchronize"};
    }
    return {};
}

// A stream that is destroyed between the look and the query is answered with an error, not with "not ready".
uint32_t stuck_streams(wire::StuckRecord* records, uint32_t limit) {
    uint32_t count = 0;
    for (FoundStream at = stream_from(state, 0); at.found && count < limit; at = stream_from(state, at.key + 1)) {
        PinnedContext context(reinterpret_cast<CUcontext>(at.owner));
        if (context.handle() == nullptr) continue;
        CurrentContext scope(context.handle());
        CUstream handle = reinterpret_cast<CUstream>(at.key);
        if (!is_capturing(handle, false) && real::cuStreamQuery(handle) != CUDA_ERROR_NOT_READY) continue;
        records[count++] = {at.key, at.owner, static_cast<uint32_t>(at.device), 0};
    }
    Contexts all = all_contexts();
    for (uint32_t i = 0; i < all.count && count < limit; i++) report_default_stream(all.handles[i], records, &count);
    return count;
}

CUresult on_cuStreamCreate(CUstream* phStream, unsigned int Flags) {
    return recorded(real::cuStreamCreate(phStream, Flags), phStream);
}

CUresult on_cuStreamCreateWithPriority(CUstream* phStream, unsigned int flags, int priority) {
    return recorded(real::cuStreamCreateWithPriority(phStream, flags, priority), phStream);
}

CUresult on_cuStreamDestroy(CUstream hStream) {
    return destroy(hStream, [&] { return real::cuStreamDestroy(hStream); });
}

CUresult on_cuStreamDestroy_v2(CUstream hStream) {
    return destroy(hStream, [&] { return real::cuStreamDestroy_v2(hStream); });
}

}  // namespace cuda
}  // namespace gcr
