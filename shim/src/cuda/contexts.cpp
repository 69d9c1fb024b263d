// SPDX-License-Identifier: Apache-2.0
//
// Contexts: they own memory and streams, and their peers give access to devices. A context takes with it what
// was allocated in it; the driver does not know that our memory belongs there, so it goes right after.
#include "cuda/contexts.h"

#include "core/agent.h"
#include "cuda/captures.h"
#include "cuda/carried.h"
#include "cuda/driver.h"
#include "cuda/vendor.h"
#include "device/allocations.h"
#include "device/devices.h"
#include "device/peers.h"
#include "device/pools.h"
#include "device/streams.h"
#include "hooks/cuda_calls.h"

namespace gcr {
namespace cuda {
namespace {

constexpr uint64_t kUnpinMs = 30000;  // longer than one of our own calls on an idle device takes

// Under state.lock.
Context* find(CUcontext handle) {
    for (Context* context : state.contexts)
        if (context->handle == handle) return context;
    return nullptr;
}

Context* record(CUcontext handle, CUdevice device) {
    Guard guard(state.lock);
    Context* context = find(handle);
    if (context != nullptr) return context;
    context = make<Context>();
    if (context == nullptr) return nullptr;
    context->handle = handle;
    context->device = device;
    if (state.contexts.push(context)) return context;
    free(context);
    return nullptr;
}

Context* take(CUcontext handle) {
    Guard guard(state.lock);
    for (size_t i = 0; i < state.contexts.size(); i++) {
        Context* context = state.contexts[i];
        if (context->handle != handle) continue;
        state.contexts.swap_out(i);
        return context;
    }
    return nullptr;
}

void put_back(Context* context) {
    Guard guard(state.lock);
    state.contexts.push(context);
}

// One of our threads may be in the driver with it: a synchronisation, an export.
void wait_unpinned(const Context* context) {
    Deadline deadline(kUnpinMs);
    while (context->pins.load() > 0 && !deadline.passed()) sleep_us(200);
}

void bury(Context* context) {
    device::forget_peers_of(state, context);
    state.captures.forget_of(reinterpret_cast<uint64_t>(context->handle));
    device::forget_streams_of(state, reinterpret_cast<uint64_t>(context->handle));
    device::settle_all_of(state, reinterpret_cast<uint64_t>(context->handle));
    state.carried.forget_owned_by(context->handle);
    state.pinned.forget_owned_by(context->handle);
    device::free_all_of(state, context);
    if (context->pins.load() > 0) return;  // leaked rather than freed under a thread of ours
    free(context);
}

// Out of the list first: none of our threads takes it up while the driver destroys it.
template <typename Destroy>
CUresult destroy(Context* context, Destroy call, bool (*gone)(Context*)) {
    if (context != nullptr) wait_unpinned(context);
    destroy_discarded();  // while their contexts are there
    CUresult result = call();
    forget_current();
    if (context == nullptr) return result;
    if (result == CUDA_SUCCESS && gone(context))
        bury(context);
    else
        put_back(context);  // the driver keeps it
    return result;
}

bool always(Context*) {
    return true;
}

bool is_primary_inactive(CUdevice device) {
    unsigned int flags = 0;
    int active = 1;
    return real::cuDevicePrimaryCtxGetState(device, &flags, &active) == CUDA_SUCCESS && active == 0;
}

bool primary_inactive(Context* context) {
    return is_primary_inactive(context->device);
}

// Under state.lock.
bool has_no_context(CUdevice device) {
    for (const Context* context : state.contexts)
        if (context->device == device) return false;
    return true;
}

// Pools are the device's, and cuda.h says that cuCtxDestroy leaves their memory: it goes when the device is reset, with
// its primary context and with no other user of it.
CUresult primary_left(CUresult result, CUdevice device) {
    if (result == CUDA_SUCCESS && is_primary_inactive(device)) device::free_pools_of(state, device, has_no_context);
    return result;
}

Context* take_primary(CUdevice device) {
    CUcontext handle = nullptr;
    unsigned int flags = 0;
    int active = 0;
    if (real::cuDevicePrimaryCtxGetState(device, &flags, &active) != CUDA_SUCCESS || active == 0) return nullptr;
    // the handle of an active primary context is only told by retaining it once more
    if (real::cuDevicePrimaryCtxRetain(&handle, device) != CUDA_SUCCESS) return nullptr;
    real::cuDevicePrimaryCtxRelease_v2(device);
    return take(handle);
}

void attached(Context* context) {
    Guard guard(state.lock);
    context->attaches++;
}

// True: the context stays, and so does everything in it.
bool still_attached(CUcontext handle) {
    Guard guard(state.lock);
    Context* context = find(handle);
    if (context == nullptr || context->attaches == 0) return false;
    context->attaches--;
    return true;
}

// Not the last release: the context stays, and so does everything in it.
bool others_retain_primary(CUdevice device) {
    Guard guard(state.lock);
    for (Context* context : state.contexts) {
        if (context->device != device || context->retains < 2) continue;
        context->retains--;
        return true;
    }
    return false;
}

CUresult created(CUresult result, CUcontext* pctx, CUdevice device) {
    forget_current();
    if (result == CUDA_SUCCESS && pctx != nullptr) record(*pctx, device);
    return result;
}

template <typename Release>
CUresult release_primary(CUdevice device, Release call) {
    forget_primary(device);
    if (others_retain_primary(device)) return call();
    return primary_left(destroy(take_primary(device), call, primary_inactive), device);
}

template <typename Reset>
CUresult reset_primary(CUdevice device, Reset call) {
    forget_primary(device);
    return primary_left(destroy(take_primary(device), call, always), device);
}

// A primary context that was reset is still current, but no longer a context.
bool alive() {
    if (captures_in_progress() > 0) return true;  // asking would break a capture; and a context that captures is alive
    CUresult result = real::cuStreamQuery(nullptr);
    return result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_READY;
}

size_t learn_pitch_unit(unsigned int element_bytes) {
    CUdeviceptr probe = 0;
    size_t pitch = 0;
    if (real::cuMemAllocPitch_v2(&probe, &pitch, 1, 1, element_bytes) != CUDA_SUCCESS) return 0;
    real::cuMemFree_v2(probe);
    return pitch;
}

Context* known(CUcontext handle) {
    Guard guard(state.lock);
    return find(handle);
}

// The calling thread's context may, or may no longer, use what belongs to the peer.
void peers_changed(CUcontext peer, void (*change)(device::State&, device::Owner*, device::Owner*)) {
    Context* accessor = current_context();
    Context* owner = accessor == nullptr ? nullptr : known(peer);
    if (owner != nullptr) change(state, accessor, owner);
}

}  // namespace

Context* current_context() {
    CUcontext handle = nullptr;
    if (real::cuCtxGetCurrent(&handle) != CUDA_SUCCESS || handle == nullptr) return nullptr;
    Context* context = known(handle);
    if (context != nullptr) return context;
    CUdevice device = 0;
    return alive() && real::cuCtxGetDevice(&device) == CUDA_SUCCESS ? record(handle, device) : nullptr;
}

// The unit is the pitch of a one-byte row; all devices of a process are taken to be alike.
size_t pitch_of(size_t width, unsigned int element_bytes) {
    static std::atomic<size_t> unit{0};
    size_t known = unit.load(std::memory_order_relaxed);
    if (known == 0) unit.store(known = learn_pitch_unit(element_bytes), std::memory_order_relaxed);
    if (known == 0 || width > SIZE_MAX - known) return 0;
    return device::round_up(width, known);
}

CUresult on_cuInit(unsigned int Flags) {
    CUresult result = real::cuInit(Flags);
    if (result == CUDA_SUCCESS) start_agent(&vendor_ops());
    return result;
}

CUresult on_cuCtxCreate(CUcontext* pctx, unsigned int flags, CUdevice dev) {
    return created(real::cuCtxCreate(pctx, flags, dev), pctx, dev);
}

CUresult on_cuCtxCreate_v2(CUcontext* pctx, unsigned int flags, CUdevice dev) {
    return created(real::cuCtxCreate_v2(pctx, flags, dev), pctx, dev);
}

CUresult on_cuCtxCreate_v3(CUcontext* pctx, CUexecAffinityParam* paramsArray, int numParams, unsigned int flags,
                           CUdevice dev) {
    return created(real::cuCtxCreate_v3(pctx, paramsArray, numParams, flags, dev), pctx, dev);
}

CUresult on_cuCtxCreate_v4(CUcontext* pctx, CUctxCreateParams* ctxCreateParams, unsigned int flags, CUdevice dev) {
    return created(real::cuCtxCreate_v4(pctx, ctxCreateParams, flags, dev), pctx, dev);
}

CUresult on_cuDevicePrimaryCtxRetain(CUcontext* pctx, CUdevice dev) {
    CUresult result = real::cuDevicePrimaryCtxRetain(pctx, dev);
    forget_primary(dev);
    Context* context = result == CUDA_SUCCESS && pctx != nullptr ? record(*pctx, dev) : nullptr;
    if (context == nullptr) return result;
    Guard guard(state.lock);
    context->retains++;
    return result;
}

CUresult on_cuCtxAttach(CUcontext* pctx, unsigned int flags) {
    CUresult result = real::cuCtxAttach(pctx, flags);
    forget_current();
    Context* context = result == CUDA_SUCCESS ? current_context() : nullptr;
    if (context != nullptr) attached(context);
    return result;
}

CUresult on_cuCtxDetach(CUcontext ctx) {
    forget_current();
    auto detach = [&] { return real::cuCtxDetach(ctx); };
    return still_attached(ctx) ? detach() : destroy(take(ctx), detach, always);
}

CUresult on_cuCtxDestroy(CUcontext ctx) {
    return destroy(take(ctx), [&] { return real::cuCtxDestroy(ctx); }, always);
}

CUresult on_cuCtxDestroy_v2(CUcontext ctx) {
    return destroy(take(ctx), [&] { return real::cuCtxDestroy_v2(ctx); }, always);
}

CUresult on_cuDevicePrimaryCtxRelease(CUdevice dev) {
    return release_primary(dev, [&] { return real::cuDevicePrimaryCtxRelease(dev); });
}

CUresult on_cuDevicePrimaryCtxRelease_v2(CUdevice dev) {
    return release_primary(dev, [&] { return real::cuDevicePrimaryCtxRelease_v2(dev); });
}

CUresult on_cuDevicePrimaryCtxReset(CUdevice dev) {
    return reset_primary(dev, [&] { return real::cuDevicePrimaryCtxReset(dev); });
}

CUresult on_cuDevicePrimaryCtxReset_v2(CUdevice dev) {
    return reset_primary(dev, [&] { return real::cuDevicePrimaryCtxReset_v2(dev); });
}

CUresult on_cuCtxEnablePeerAccess(CUcontext peerContext, unsigned int Flags) {
    CUresult result = real::cuCtxEnablePeerAccess(peerContext, Flags);
    if (result == CUDA_SUCCESS) peers_changed(peerContext, device::add_peer);
    return result;
}

CUresult on_cuCtxDisablePeerAccess(CUcontext peerContext) {
    CUresult result = real::cuCtxDisablePeerAccess(peerContext);
    if (result == CUDA_SUCCESS) peers_changed(peerContext, device::remove_peer);
    return result;
}

}  // namespace cuda
}  // namespace gcr
