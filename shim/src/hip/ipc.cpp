// SPDX-License-Identifier: Apache-2.0
//
// Legacy IPC, recorded from the first call on: memory that another process maps cannot be handed over.
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

}  // namespace

// The runtime gives no legacy handle for mapped memory, so plain memory of ours has none: see limitations.
hipError_t on_hipIpcGetMemHandle(hipIpcMemHandle_t* handle, void* devPtr) {
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
    hipError_t result = real::hipIpcOpenMemHandle(devPtr, handle, flags);
    if (result != hipSuccess) return result;
    void* base = nullptr;
    size_t size = 0;
    real::hipMemGetAddressRange(&base, &size, *devPtr);
    return carry(result, *devPtr, size, wire::kReasonIpcImport);
}

hipError_t on_hipIpcCloseMemHandle(void* devPtr) {
    return free_carried(devPtr, [&] { return real::hipIpcCloseMemHandle(devPtr); });
}

hipError_t on_hipIpcOpenEventHandle(hipEvent_t* event, hipIpcEventHandle_st handle) {
    hipError_t result = real::hipIpcOpenEventHandle(event, handle);
    if (result == hipSuccess) add_uncovered(wire::kReasonIpcImport, 0);
    return result;
}

}  // namespace hip
}  // namespace gcr
