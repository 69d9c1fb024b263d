// SPDX-License-Identifier: Apache-2.0
//
// Legacy IPC. Memory of ours is lent, and handed over like the rest (device/lent.h). The driver makes handles for its own
// memory alone, which is recorded from the first call on: what another process maps of it cannot be handed over.
//
// Interprocess events are the driver's, as all events are. They live on when the processes are checkpointed and restored
// (H100, r580: all of them, or any one). Whether they do in processes that end and come back is not known, nor what the
// driver keeps of an event that was destroyed. So a process that has used one has the reason for good.
#include "cuda/carried.h"
#include "cuda/contexts.h"
#include "cuda/driver.h"
#include "device/lent.h"
#include "hooks/cuda_calls.h"

namespace gcr {
namespace cuda {
namespace {

constexpr unsigned int kLazyEnablePeerAccess = 1;  // CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, the only flag there is

uint64_t allocation_bytes(CUdeviceptr address) {
    {
        Guard guard(state.lock);
        Allocation* allocation = device::allocation_at(state, address);
        if (allocation != nullptr) return allocation->size;
    }
    return state.carried.bytes_of(address);
}

CUresult carry_opened(CUdeviceptr address) {
    CUdeviceptr base = 0;
    size_t size = 0;
    real::cuMemGetAddressRange_v2(&base, &size, address);
    carry(address, size, wire::kReasonIpcImport);
    return CUDA_SUCCESS;
}

// The driver's answers to what it would refuse, in its order.
CUresult open_lent(CUdeviceptr* out, const Blob& blob, unsigned int flags) {
    if (out == nullptr || flags != kLazyEnablePeerAccess) return CUDA_ERROR_INVALID_VALUE;
    Context* owner = current_context();
    if (owner == nullptr || is_own(blob)) return CUDA_ERROR_INVALID_CONTEXT;
    uint64_t address = 0;
    CUresult result = device::open(state, owner, blob, &address);
    if (result == CUDA_SUCCESS) *out = address;
    return result;
}

template <typename Open>
CUresult open_handle(CUdeviceptr* out, const CUipcMemHandle& handle, unsigned int flags, Open open) {
    Blob blob = blob_in(handle);
    if (is_blob(blob, wire::kNvidia)) return open_lent(out, blob, flags);
    CUresult result = open();
    return result == CUDA_SUCCESS ? carry_opened(*out) : result;
}

}  // namespace

CUresult on_cuIpcGetMemHandle(CUipcMemHandle* pHandle, CUdeviceptr dptr) {
    Blob blob;
    if (pHandle != nullptr && device::offer(state, dptr, &blob)) {
        put_blob(blob, pHandle);
        return CUDA_SUCCESS;
    }
    CUresult result = real::cuIpcGetMemHandle(pHandle, dptr);
    if (result == CUDA_SUCCESS) add_uncovered(wire::kReasonIpcExport, allocation_bytes(dptr));
    return result;
}

CUresult on_cuIpcGetEventHandle(CUipcEventHandle* pHandle, CUevent event) {
    CUresult result = real::cuIpcGetEventHandle(pHandle, event);
    if (result == CUDA_SUCCESS) add_uncovered(wire::kReasonIpcEvent, 0);
    return result;
}

CUresult on_cuIpcOpenMemHandle(CUdeviceptr* pdptr, CUipcMemHandle handle, unsigned int Flags) {
    return open_handle(pdptr, handle, Flags, [&] { return real::cuIpcOpenMemHandle(pdptr, handle, Flags); });
}

CUresult on_cuIpcOpenMemHandle_v2(CUdeviceptr* pdptr, CUipcMemHandle handle, unsigned int Flags) {
    return open_handle(pdptr, handle, Flags, [&] { return real::cuIpcOpenMemHandle_v2(pdptr, handle, Flags); });
}

CUresult on_cuIpcCloseMemHandle(CUdeviceptr dptr) {
    CUresult result;
    if (device::close(state, dptr, &result)) return result;
    return free_carried(dptr, [](CUdeviceptr p) { return real::cuIpcCloseMemHandle(p); });
}

CUresult on_cuIpcOpenEventHandle(CUevent* phEvent, CUipcEventHandle handle) {
    CUresult result = real::cuIpcOpenEventHandle(phEvent, handle);
    if (result == CUDA_SUCCESS) add_uncovered(wire::kReasonIpcEvent, 0);
    return result;
}

}  // namespace cuda
}  // namespace gcr
