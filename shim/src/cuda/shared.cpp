// SPDX-License-Identifier: Apache-2.0
//
// Memory that reaches beyond this process or this device: imports, exports, multicast, sparse arrays, dma-buf. It works as
// it does bare and is recorded from the first call on. What was exported as a ticket is handed over, the rest never.
#include "core/ticket.h"
#include "cuda/driver.h"
#include "device/foreign.h"
#include "device/held.h"
#include "device/loans.h"
#include "hooks/cuda_calls.h"

namespace gcr {
namespace cuda {
namespace {

using device::Held;

// From now on someone else may hold this memory: it is no longer ours to hand over.
void becomes(Handle* handle, Reason reason) {
    Guard guard(state.lock);
    device::uncover(handle, reason);
}

CUresult give_id(CUmemGenericAllocationHandle* out, CUmemGenericAllocationHandle made, uint64_t size,
                 const CUmemAllocationProp& asked, Reason reason) {
    uint64_t id = 0;
    CUresult result = device::give_id(state, made, size, Properties::of(asked), reason, &id);
    if (result == CUDA_SUCCESS) *out = id;
    return result;
}

Properties properties_of(uint64_t real) {
    CUmemAllocationProp asked{};
    real::cuMemGetAllocationPropertiesFromHandle(&asked, real);
    return Properties::of(asked);
}

bool is_ticket(void* given, CUmemAllocationHandleType type, Blob* blob) {
    return type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR &&
           read_ticket(static_cast<int>(reinterpret_cast<intptr_t>(given)), blob) && is_blob(*blob, wire::kNvidia);
}

CUresult redeem(const Blob& blob, CUmemGenericAllocationHandle* out) {
    uint64_t id = 0;
    CUresult result = device::redeem(state, blob, properties_of, &id);
    if (result == CUDA_SUCCESS) *out = id;
    return result;
}

// A copy with the driver's handles in it; the caller's list is left as it is.
template <typename Call>
CUresult map_arrays(const CUarrayMapInfo* list, unsigned int count, Call call) {
    ScratchArray<CUarrayMapInfo> translated;
    if (list == nullptr || count == 0 || !translated.reserve(count)) return call(const_cast<CUarrayMapInfo*>(list));
    for (unsigned int i = 0; i < count; i++) {
        translated.push(list[i]);
        translated[i].memHandle.memHandle = Held(state, list[i].memHandle.memHandle).real();
    }
    CUresult result = call(translated.data());
    if (result == CUDA_SUCCESS) add_uncovered(wire::kReasonSparse, 0);
    return result;
}

template <typename Call>
CUresult multicast(Call call) {
    CUresult result = call();
    if (result == CUDA_SUCCESS) add_uncovered(wire::kReasonMulticast, 0);
    return result;
}

}  // namespace

CUresult on_cuMemExportToShareableHandle(void* shareableHandle, CUmemGenericAllocationHandle handle,
                                         CUmemAllocationHandleType handleType, unsigned long long flags) {
    Held held(state, handle);
    Handle* found = held.get();
    if (found == nullptr) return real::cuMemExportToShareableHandle(shareableHandle, held.real(), handleType, flags);
    // ours is exportable as a descriptor whether the program asked for it or not; what it did not ask for stays an error
    bool asked = (found->asked.as<CUmemAllocationProp>().requestedHandleTypes & handleType) != 0 ||
                 found->reason == wire::kReasonMulticast;
    if (!asked || found->foreign != nullptr) return CUDA_ERROR_INVALID_VALUE;
    bool as_file = handleType == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR && shareableHandle != nullptr && flags == 0;
    if (as_file && device::give_ticket(state, held, static_cast<int*>(shareableHandle))) return CUDA_SUCCESS;
    CUresult result = real::cuMemExportToShareableHandle(shareableHandle, found->real, handleType, flags);
    if (result != CUDA_SUCCESS || found->reason == wire::kReasonMulticast) return result;
    becomes(found, handleType == CU_MEM_HANDLE_TYPE_FABRIC ? wire::kReasonFabric : wire::kReasonShareableExport);
    return result;
}

CUresult on_cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* osHandle,
                                           CUmemAllocationHandleType shHandleType) {
    Blob blob;
    if (handle != nullptr && is_ticket(osHandle, shHandleType, &blob)) return redeem(blob, handle);
    CUmemGenericAllocationHandle made = 0;
    CUresult result = real::cuMemImportFromShareableHandle(handle == nullptr ? nullptr : &made, osHandle, shHandleType);
    if (result != CUDA_SUCCESS) return result;
    uint64_t id = 0;
    if (device::give_same_id(state, made, &id)) {
        *handle = id;
        return CUDA_SUCCESS;
    }
    CUmemAllocationProp asked{};
    real::cuMemGetAllocationPropertiesFromHandle(&asked, made);
    Reason reason = shHandleType == CU_MEM_HANDLE_TYPE_FABRIC ? wire::kReasonFabric : wire::kReasonShareableImport;
    return give_id(handle, made, 0, asked, reason);  // only its maker knows its size
}

CUresult on_cuMemMapArrayAsync(CUarrayMapInfo* mapInfoList, unsigned int count, CUstream hStream) {
    return map_arrays(mapInfoList, count,
                      [&](CUarrayMapInfo* list) { return real::cuMemMapArrayAsync(list, count, hStream); });
}

CUresult on_cuMemMapArrayAsync_ptsz(CUarrayMapInfo* mapInfoList, unsigned int count, CUstream hStream) {
    return map_arrays(mapInfoList, count,
                      [&](CUarrayMapInfo* list) { return real::cuMemMapArrayAsync_ptsz(list, count, hStream); });
}

CUresult on_cuMemGetHandleForAddressRange(void* handle, CUdeviceptr dptr, size_t size, CUmemRangeHandleType handleType,
                                          unsigned long long flags) {
    CUresult result = real::cuMemGetHandleForAddressRange(handle, dptr, size, handleType, flags);
    if (result == CUDA_SUCCESS) add_uncovered(wire::kReasonDmaBuf, size);
    return result;
}

CUresult on_cuMulticastCreate(CUmemGenericAllocationHandle* mcHandle, const CUmulticastObjectProp* prop) {
    CUmemGenericAllocationHandle made = 0;
    CUresult result = real::cuMulticastCreate(mcHandle == nullptr ? nullptr : &made, prop);
    if (result != CUDA_SUCCESS) return result;
    CUmemAllocationProp asked{};
    asked.requestedHandleTypes = static_cast<CUmemAllocationHandleType>(prop->handleTypes);
    return give_id(mcHandle, made, prop->size, asked, wire::kReasonMulticast);
}

CUresult on_cuMulticastAddDevice(CUmemGenericAllocationHandle mcHandle, CUdevice dev) {
    return real::cuMulticastAddDevice(Held(state, mcHandle).real(), dev);
}

CUresult on_cuMulticastBindMem(CUmemGenericAllocationHandle mcHandle, size_t mcOffset,
                               CUmemGenericAllocationHandle memHandle, size_t memOffset, size_t size,
                               unsigned long long flags) {
    return multicast([&] {
        return real::cuMulticastBindMem(Held(state, mcHandle).real(), mcOffset, Held(state, memHandle).real(),
                                        memOffset, size, flags);
    });
}

CUresult on_cuMulticastBindMem_v2(CUmemGenericAllocationHandle mcHandle, CUdevice dev, size_t mcOffset,
                                  CUmemGenericAllocationHandle memHandle, size_t memOffset, size_t size,
                                  unsigned long long flags) {
    return multicast([&] {
        return real::cuMulticastBindMem_v2(Held(state, mcHandle).real(), dev, mcOffset, Held(state, memHandle).real(),
                                           memOffset, size, flags);
    });
}

CUresult on_cuMulticastBindAddr(CUmemGenericAllocationHandle mcHandle, size_t mcOffset, CUdeviceptr memptr, size_t size,
                                unsigned long long flags) {
    return multicast(
        [&] { return real::cuMulticastBindAddr(Held(state, mcHandle).real(), mcOffset, memptr, size, flags); });
}

CUresult on_cuMulticastBindAddr_v2(CUmemGenericAllocationHandle mcHandle, CUdevice dev, size_t mcOffset,
                                   CUdeviceptr memptr, size_t size, unsigned long long flags) {
    return multicast(
        [&] { return real::cuMulticastBindAddr_v2(Held(state, mcHandle).real(), dev, mcOffset, memptr, size, flags); });
}

CUresult on_cuMulticastUnbind(CUmemGenericAllocationHandle mcHandle, CUdevice dev, size_t mcOffset, size_t size) {
    return real::cuMulticastUnbind(Held(state, mcHandle).real(), dev, mcOffset, size);
}

CUresult on_cuLogicalEndpointBindMem(CUlogicalEndpointId leId, CUdevice dev, uint64_t offset,
                                     CUmemGenericAllocationHandle memHandle, uint64_t memOffset, uint64_t size,
                                     unsigned long long flags) {
    CUresult result =
        real::cuLogicalEndpointBindMem(leId, dev, offset, Held(state, memHandle).real(), memOffset, size, flags);
    if (result == CUDA_SUCCESS) add_uncovered(wire::kReasonFabric, size);
    return result;
}

}  // namespace cuda
}  // namespace gcr
