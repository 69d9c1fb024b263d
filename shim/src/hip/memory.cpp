// SPDX-License-Identifier: Apache-2.0
//
// hipMalloc and its kin, served with mapped physical memory where that can be had.
#include "device/allocations.h"
#include "device/devices.h"
#include "hip/captures.h"
#include "hip/carried.h"
#include "hip/free.h"
#include "hooks/hip_calls.h"

namespace gcr {
namespace hip {
namespace {

constexpr size_t kProbe = 512;  // bytes

// What the runtime says of a call that a capture forbids; it also invalidates that capture, as the bare call would.
hipError_t refused_by_capture() {
    if (!capture_forbids_allocation()) return hipSuccess;
    void* probe = nullptr;
    hipError_t result = real::hipMalloc(&probe, kProbe);
    if (result == hipSuccess) real::hipFree(probe);
    return result;
}

bool allocate_ours(Owner* owner, size_t size, void** out) {
    uint64_t address = 0;
    if (!device::facts_of(state, owner->device).shareable) return false;
    if (device::allocate(state, owner, size, &address) != hipSuccess) return false;
    *out = pointer_at(address);
    return true;
}

Owner* owner_for(const void* out, size_t size) {
    return out == nullptr || size == 0 ? nullptr : current_owner();
}

// `bare`: the runtime's own allocation, which it carries. It may still find room where we found none (its pools).
template <typename Bare>
hipError_t allocate(void** out, size_t size, Bare bare) {
    Owner* owner = owner_for(out, size);
    if (owner == nullptr) return bare();  // the runtime's own error
    if (capture_forbids_allocation()) {
        hipError_t result = bare();
        return carry(result, *out, size, wire::kReasonCapture);
    }
    if (state.any_put_off.load(std::memory_order_relaxed)) device::give_back_put_off(state);
    if (allocate_ours(owner, size, out)) return hipSuccess;
    hipError_t result = bare();
    return carry(result, *out, size, wire::kReasonUnexportable);
}

size_t bytes_of_rows(size_t pitch, size_t rows) {
    return pitch == 0 || rows > SIZE_MAX / pitch ? 0 : pitch * rows;
}

hipError_t allocate_rows(void** out, size_t* pitch, size_t width, size_t rows, Owner* owner) {
    bool plain = owner != nullptr && width > 0 && rows > 0 && !capture_forbids_allocation();
    size_t wanted = plain ? pitch_of(width) : 0;
    size_t bytes = bytes_of_rows(wanted, rows);
    if (bytes == 0 || !allocate_ours(owner, bytes, out)) return hipErrorNotSupported;
    *pitch = wanted;
    return hipSuccess;
}

hipError_t free_ours(Allocation* allocation) {
    if (captures_in_progress() == 0) return device::free_when_idle(state, allocation);
    hipError_t refused = refused_by_capture();
    if (refused == hipSuccess)
        device::put_off(state, allocation);
    else
        device::take_back(state, allocation);
    return refused;
}

}  // namespace

hipError_t free_device(void* pointer) {
    // forgotten before anything is given back: another thread may be given this address as soon as the runtime has it
    Allocation* allocation = pointer == nullptr ? nullptr : device::take_allocation(state, key_of(pointer));
    if (allocation != nullptr) return free_ours(allocation);
    return free_carried(
        pointer, [&] { return state.pinned.free_with(key_of(pointer), [&] { return real::hipFree(pointer); }); });
}

hipError_t on_hipMalloc(void** ptr, size_t size) {
    return allocate(ptr, size, [&] { return real::hipMalloc(ptr, size); });
}

// Any flag asks for memory of another kind (fine-grained, uncached, a signal), which only the runtime makes.
hipError_t on_hipExtMallocWithFlags(void** ptr, size_t sizeBytes, unsigned int flags) {
    auto bare = [&] { return real::hipExtMallocWithFlags(ptr, sizeBytes, flags); };
    if (flags == 0) return allocate(ptr, sizeBytes, bare);
    hipError_t result = bare();
    return ptr == nullptr ? result : carry(result, *ptr, sizeBytes, wire::kReasonUnexportable);
}

hipError_t on_hipFree(void* ptr) {
    return free_device(ptr);
}

hipError_t on_hipMallocPitch(void** ptr, size_t* pitch, size_t width, size_t height) {
    Owner* owner = pitch == nullptr ? nullptr : owner_for(ptr, width);
    if (allocate_rows(ptr, pitch, width, height, owner) == hipSuccess) return hipSuccess;
    hipError_t result = real::hipMallocPitch(ptr, pitch, width, height);
    return result == hipSuccess ? carry(result, *ptr, *pitch * height, wire::kReasonUnexportable) : result;
}

hipError_t on_hipMemAllocPitch(void** dptr, size_t* pitch, size_t widthInBytes, size_t height,
                               unsigned int elementSizeBytes) {
    bool plain = elementSizeBytes == 4 || elementSizeBytes == 8 || elementSizeBytes == 16;
    Owner* owner = pitch == nullptr || !plain ? nullptr : owner_for(dptr, widthInBytes);
    if (allocate_rows(dptr, pitch, widthInBytes, height, owner) == hipSuccess) return hipSuccess;
    hipError_t result = real::hipMemAllocPitch(dptr, pitch, widthInBytes, height, elementSizeBytes);
    return result == hipSuccess ? carry(result, *dptr, *pitch * height, wire::kReasonUnexportable) : result;
}

hipError_t on_hipMalloc3D(hipPitchedPtr* pitched, hipExtent extent) {
    Owner* owner = pitched == nullptr ? nullptr : owner_for(pitched, extent.width);
    size_t rows = bytes_of_rows(extent.height, extent.depth);
    if (owner != nullptr && allocate_rows(&pitched->ptr, &pitched->pitch, extent.width, rows, owner) == hipSuccess) {
        pitched->xsize = extent.width;
        pitched->ysize = extent.height;
        return hipSuccess;
    }
    hipError_t result = real::hipMalloc3D(pitched, extent);
    return result == hipSuccess ? carry(result, pitched->ptr, pitched->pitch * rows, wire::kReasonUnexportable)
                                : result;
}

}  // namespace hip
}  // namespace gcr
