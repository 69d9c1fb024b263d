// SPDX-License-Identifier: Apache-2.0
//
// Legacy IPC. Memory of ours is lent, and handed over like the rest (device/lent.h). The runtime makes handles for its own
// memory alone, which is recorded from the first call on: what another process maps of it cannot be handed over.
// Its interprocess events are host memory that processes share. No device was asked whether they live on: refused.
#include "device/lent.h"
#include "hip/carried.h"
#include "hooks/hip_calls.h"

namespace gcr {
namespace hip {
namespace {

uint64_t allocation_bytes(const void* pointer) {
    {
        Guard guard(state.lock);
        Allocation* allocation = device::allocation_at(state, key_of(pointer));
        if (allocation != nullptr) return allocation->size;
    }
    return state.carried.bytes_of(key_of(pointer));
}

// The runtime's answers to what it would refuse, in its order.
hipError_t open_lent(void** out, const Blob& blob, unsigned int flags) {
    if (out == nullptr || flags != hipIpcMemLazyEnablePeerAccess) return hipErrorInvalidValue;
    Owner* owner = current_owner();
    if (owner == nullptr || is_own(blob)) return hipErrorInvalidContext;
    uint64_t address = 0;
    auto result = static_cast<hipError_t>(device::open(state, owner, blob, &address));
    if (result == hipSuccess) *out = pointer_at(address);
    return result;
}

}  // namespace

hipError_t on_hipIpcGetMemHandle(hipIpcMemHandle_t* handle, void* devPtr) {
    Blob blob;
    if (handle != nullptr && device::offer(state, key_of(devPtr), &blob)) {
        put_blob(blob, handle);
        return hipSuccess;
    }
    hipError_t result = real::hipIpcGetMemHandle(handle, devPtr);
    if (result == hipSuccess) add_uncovered(wire::kReasonIpcExport, allocation_bytes(devPtr));
    return result;
}

hipError_t on_hipIpcGetEventHandle(hipIpcEventHandle_t* handle, hipEvent_t event) {
    hipError_t result = real::hipIpcGetEventHandle(handle, event);
    if (result == hipSuccess) add_uncovered(wire::kReasonIpcExport, 0);
    return result;
}

hipError_t on_hipIpcOpenMemHandle(void** devPtr, hipIpcMemHandle_st handle, unsigned int flags) {
    Blob blob = blob_in(handle);
    if (is_blob(blob, wire::kAmd)) return open_lent(devPtr, blob, flags);
    hipError_t result = real::hipIpcOpenMemHandle(devPtr, handle, flags);
    if (result != hipSuccess) return result;
    void* base = nullptr;
    size_t size = 0;
    real::hipMemGetAddressRange(&base, &size, *devPtr);
    return carry(result, *devPtr, size, wire::kReasonIpcImport);
}

hipError_t on_hipIpcCloseMemHandle(void* devPtr) {
    device::Result result;
    if (device::close(state, key_of(devPtr), &result)) return static_cast<hipError_t>(result);
    return free_carried(devPtr, [&] { return real::hipIpcCloseMemHandle(devPtr); });
}

hipError_t on_hipIpcOpenEventHandle(hipEvent_t* event, hipIpcEventHandle_st handle) {
    hipError_t result = real::hipIpcOpenEventHandle(event, handle);
    if (result == hipSuccess) add_uncovered(wire::kReasonIpcImport, 0);
    return result;
}

}  // namespace hip
}  // namespace gcr
