// SPDX-License-Identifier: Apache-2.0
//
// The program's own virtual memory management: physical memory behind virtual handles, wherever it maps it.
#include "cuda/driver.h"
#include "device/held.h"
#include "device/mappings.h"
#include "device/physical.h"
#include "hooks/cuda_calls.h"

namespace gcr {
namespace cuda {
namespace {

Reason reason_for(const CUmemAllocationProp& asked) {
    if (asked.location.type != CU_MEM_LOCATION_TYPE_DEVICE) return wire::kReasonHostNuma;
    if (asked.type != CU_MEM_ALLOCATION_TYPE_PINNED) return wire::kReasonManaged;
    return kCovered;
}

bool for_the_fabric(const CUmemAllocationProp& asked) {
    return (asked.requestedHandleTypes & CU_MEM_HANDLE_TYPE_FABRIC) != 0;
}

// What only the driver can make stays the driver's; the rest can be handed over if it made it exportable. That goes for
// memory made for the fabric as well: no process shares it before it is exported (on_cuMemExportToShareableHandle).
CUresult create(size_t size, const CUmemAllocationProp& asked, unsigned long long flags, uint64_t* made,
                Reason* reason) {
    *reason = reason_for(asked);
    if (*reason != kCovered) return state.ops->create(size, Properties::of(asked), flags, false, made);
    device::Physical physical{};
    CUresult result = device::create_physical(state, size, Properties::of(asked), flags, &physical);
    if (!physical.exportable) *reason = for_the_fabric(asked) ? wire::kReasonFabric : wire::kReasonUnexportable;
    *made = physical.real;
    return result;
}

void record_access(CUdeviceptr address, size_t size, const CUmemAccessDesc& desc) {
    bool may_read = desc.flags != CU_MEM_ACCESS_FLAGS_PROT_NONE;
    bool may_write = desc.flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    if (desc.location.type == CU_MEM_LOCATION_TYPE_DEVICE)
        device::record_access(state, address, size, desc.location.id, may_read, may_write);
    else
        device::uncover_range(state, address, size, wire::kReasonHostNuma);
}

}  // namespace

CUresult on_cuMemCreate(CUmemGenericAllocationHandle* handle, size_t size, const CUmemAllocationProp* prop,
                        unsigned long long flags) {
    if (handle == nullptr || prop == nullptr) return real::cuMemCreate(handle, size, prop, flags);
    Reason reason;
    uint64_t made = 0, id = 0;
    CUresult result = create(size, *prop, flags, &made, &reason);
    if (result == CUDA_SUCCESS) result = device::give_id(state, made, size, Properties::of(*prop), reason, &id);
    if (result == CUDA_SUCCESS) *handle = id;
    return result;
}

CUresult on_cuMemRelease(CUmemGenericAllocationHandle handle) {
    CUresult result;
    if (device::release_reference(state, handle, &result)) return result;
    return real::cuMemRelease(device::as_passed_on(handle));
}

CUresult on_cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                     unsigned long long flags) {
    device::Held held(state, handle);
    CUresult result = real::cuMemMap(ptr, size, offset, held.real(), flags);
    if (result != CUDA_SUCCESS || held.get() == nullptr) return result;
    return device::record_mapping(state, held.get(), ptr, size, offset);
}

CUresult on_cuMemUnmap(CUdeviceptr ptr, size_t size) {
    return device::unmap_range(state, ptr, size);
}

CUresult on_cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc* desc, size_t count) {
    if (device::touches_internal(state, ptr, size)) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = real::cuMemSetAccess(ptr, size, desc, count);
    for (size_t i = 0; result == CUDA_SUCCESS && desc != nullptr && i < count; i++) record_access(ptr, size, desc[i]);
    return result;
}

CUresult on_cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* addr) {
    uint64_t id = 0;
    if (!device::retain_at(state, reinterpret_cast<uint64_t>(addr), handle == nullptr ? nullptr : &id))
        return real::cuMemRetainAllocationHandle(handle, addr);
    if (id == 0) return CUDA_ERROR_INVALID_VALUE;
    *handle = id;
    return CUDA_SUCCESS;
}

CUresult on_cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* prop, CUmemGenericAllocationHandle handle) {
    Properties asked;
    if (prop == nullptr || !device::properties_of(state, handle, &asked))
        return real::cuMemGetAllocationPropertiesFromHandle(prop, device::as_passed_on(handle));
    *prop = asked.as<CUmemAllocationProp>();
    return CUDA_SUCCESS;
}

}  // namespace cuda
}  // namespace gcr
