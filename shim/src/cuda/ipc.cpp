// SPDX-License-Identifier: Apache-2.0
//
// Legacy IPC, recorded from the first call on: memory that another process maps cannot be handed over.
#include "cuda/carried.h"
#include "cuda/driver.h"
#include "hooks/cuda_calls.h"

namespace gcr {
namespace cuda {
namespace {

uint64_t allocation_bytes(CUdeviceptr address) {
    {
        Guard guard(state.lock);
        Allocation* allocation = device::allocation_at(state, address);
        if (allocation != nullptr) return allocation->size;
    }
    return state.carried.bytes_of(address);
}

}  // namespace

// The driver gives no legacy handle for mapped memory (INVALID_VALUE), so plain memory of ours has none: see limitations.
CUresult on_cuIpcGetMemHandle(CUipcMemHandle* pHandle, CUdeviceptr dptr) {
    CUresult result = real::cuIpcGetMemHandle(pHandle, dptr);
    if (result == CUDA_SUCCESS) add_uncovered(wire::kReasonIpcExport, allocation_bytes(dptr));
    return result;
}

CUresult on_cuIpcGetEventHandle(CUipcEventHandle* pHandle, CUevent event) {
    CUresult result = real::cuIpcGetEventHandle(pHandle, event);
    if (result == CUDA_SUCCESS) add_uncovered(wire::kReasonIpcExport, 0);
    return result;
}

CUresult on_cuIpcOpenMemHandle_v2(CUdeviceptr* pdptr, CUipcMemHandle handle, unsigned int Flags) {
    CUresult result = real::cuIpcOpenMemHandle_v2(pdptr, handle, Flags);
    if (result != CUDA_SUCCESS) return result;
    CUdeviceptr base = 0;
    size_t size = 0;
    real::cuMemGetAddressRange_v2(&base, &size, *pdptr);
    carry(*pdptr, size, wire::kReasonIpcImport);
    return result;
}

CUresult on_cuIpcCloseMemHandle(CUdeviceptr dptr) {
    return free_carried(dptr, [](CUdeviceptr p) { return real::cuIpcCloseMemHandle(p); });
}

CUresult on_cuIpcOpenEventHandle(CUevent* phEvent, CUipcEventHandle handle) {
    CUresult result = real::cuIpcOpenEventHandle(phEvent, handle);
    if (result == CUDA_SUCCESS) add_uncovered(wire::kReasonIpcImport, 0);
    return result;
}

}  // namespace cuda
}  // namespace gcr
