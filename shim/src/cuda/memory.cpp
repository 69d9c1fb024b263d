// SPDX-License-Identifier: Apache-2.0
//
// cuMemAlloc and its kin, served with mapped physical memory where that can be had.
#include "cuda/captures.h"
#include "cuda/carried.h"
#include "cuda/contexts.h"
#include "cuda/driver.h"
#include "device/allocations.h"
#include "device/devices.h"
#include "hooks/cuda_calls.h"

namespace gcr {
namespace cuda {
namespace {

constexpr size_t kProbe = 512;  // bytes

// What the driver says of a call that a capture forbids; it also invalidates that capture, as the bare call would.
CUresult refused_by_capture() {
    if (!capture_forbids_allocation()) return CUDA_SUCCESS;
    CUdeviceptr probe = 0;
    CUresult result = real::cuMemAlloc_v2(&probe, kProbe);
    if (result == CUDA_SUCCESS) real::cuMemFree_v2(probe);
    return result;
}

// The driver's own allocator: what it makes, it carries.
CUresult allocate_bare(CUdeviceptr* out, size_t size, Reason reason) {
    CUresult result = real::cuMemAlloc_v2(out, size);
    if (result == CUDA_SUCCESS) carry(*out, size, reason);
    return result;
}

bool allocate_ours(Context* owner, size_t size, CUdeviceptr* out) {
    uint64_t address = 0;
    if (!device::facts_of(state, owner->device).shareable) return false;
    if (device::allocate(state, owner, size, &address) != CUDA_SUCCESS) return false;
    *out = address;
    return true;
}

}  // namespace

CUresult on_cuMemAlloc_v2(CUdeviceptr* dptr, size_t bytesize) {
    Context* owner = dptr == nullptr || bytesize == 0 ? nullptr : current_context();
    if (owner == nullptr) return real::cuMemAlloc_v2(dptr, bytesize);  // the driver's own error
    if (capture_forbids_allocation()) return allocate_bare(dptr, bytesize, wire::kReasonCapture);
    if (state.any_put_off.load(std::memory_order_relaxed)) device::give_back_put_off(state);
    if (allocate_ours(owner, bytesize, dptr)) return CUDA_SUCCESS;
    // never out of memory because of us: the driver may still find room (its pools, a slab of its own)
    return allocate_bare(dptr, bytesize, wire::kReasonUnexportable);
}

CUresult on_cuMemFree_v2(CUdeviceptr dptr) {
    // forgotten before anything is given back: another thread may be given this address as soon as the driver has it
    Allocation* allocation = dptr == 0 ? nullptr : device::take_allocation(state, dptr);
    if (allocation == nullptr) return free_carried(dptr, [](CUdeviceptr p) { return real::cuMemFree_v2(p); });
    if (captures_in_progress() == 0) return device::free_when_idle(state, allocation);
    CUresult refused = refused_by_capture();
    if (refused == CUDA_SUCCESS)
        device::put_off(state, allocation);
    else
        device::take_back(state, allocation);
    return refused;
}

CUresult on_cuMemAllocPitch_v2(CUdeviceptr* dptr, size_t* pPitch, size_t WidthInBytes, size_t Height,
                               unsigned int ElementSizeBytes) {
    Context* owner = dptr == nullptr || pPitch == nullptr ? nullptr : current_context();
    bool plain = WidthInBytes > 0 && Height > 0 && !capture_forbids_allocation() &&
                 (ElementSizeBytes == 4 || ElementSizeBytes == 8 || ElementSizeBytes == 16);
    size_t pitch = owner != nullptr && plain ? pitch_of(WidthInBytes, ElementSizeBytes) : 0;
    if (pitch != 0 && Height <= SIZE_MAX / pitch && allocate_ours(owner, pitch * Height, dptr)) {
        *pPitch = pitch;
        return CUDA_SUCCESS;
    }
    CUresult result = real::cuMemAllocPitch_v2(dptr, pPitch, WidthInBytes, Height, ElementSizeBytes);
    if (result == CUDA_SUCCESS) carry(*dptr, *pPitch * Height, wire::kReasonUnexportable);
    return result;
}

}  // namespace cuda
}  // namespace gcr
