// SPDX-License-Identifier: Apache-2.0
//
// The program's own virtual memory management: physical memory behind virtual handles, wherever it maps it.
//
// A handle lives while the program holds a reference or a mapping; so do the driver's and ours.
#include "cuda/driver.h"
#include "cuda/held.h"
#include "cuda/physical.h"
#include "hooks/cuda_calls.h"

namespace gcr {
namespace cuda {
namespace {

Reason reason_for(const CUmemAllocationProp& asked) {
    if (asked.location.type != CU_MEM_LOCATION_TYPE_DEVICE) return wire::kReasonHostNuma;
    if (asked.type != CU_MEM_ALLOCATION_TYPE_PINNED) return wire::kReasonManaged;
    if ((asked.requestedHandleTypes & CU_MEM_HANDLE_TYPE_FABRIC) != 0) return wire::kReasonFabric;
    return kCovered;
}

bool record_mapping(Handle* handle, CUdeviceptr address, uint64_t size, uint64_t offset) {
    Mapping* mapping = make<Mapping>();
    if (mapping == nullptr) return false;
    mapping->key = address;
    mapping->handle = handle;
    mapping->offset = offset;
    mapping->size = size;
    Guard guard(state.lock);
    handle->mapped++;
    link_mapping(mapping);
    return true;
}

// Under state.lock. True: the range touches memory behind cuMemAlloc, which is no business of these calls.
bool touches_internal(CUdeviceptr address, uint64_t size) {
    Mapping* mapping = mapping_at(address);
    if (mapping == nullptr) mapping = state.mappings.at_least(address);
    for (; mapping != nullptr && mapping->key < address + size; mapping = state.mappings.after(mapping))
        if (mapping->owner != nullptr) return true;
    return false;
}

// Under state.lock: takes the mappings that lie wholly in the range out of the table, chained by `left`.
Mapping* take_mappings(CUdeviceptr address, uint64_t size) {
    Mapping* chain = nullptr;
    for (Mapping* mapping = state.mappings.at_least(address); mapping != nullptr && mapping->key < address + size;) {
        Mapping* next = state.mappings.after(mapping);
        if (mapping->key + mapping->size <= address + size) {
            unlink_mapping(mapping);
            mapping->left = chain;
            chain = mapping;
        }
        mapping = next;
    }
    return chain;
}

void put_back_mappings(Mapping* chain) {
    Guard guard(state.lock);
    while (chain != nullptr) {
        Mapping* next = chain->left;
        chain->left = chain->right = nullptr;
        link_mapping(chain);
        chain = next;
    }
}

void drop_mappings(Mapping* chain) {
    while (chain != nullptr) {
        Mapping* next = chain->left;
        Handle* handle = chain->handle;
        bool unused;
        {
            Guard guard(state.lock);
            handle->mapped--;
            unused = retire_if_unused(handle);
        }
        if (unused) destroy_physical(handle);
        free(chain);
        chain = next;
    }
}

void change_access(Mapping* mapping, uint32_t device, CUmemAccess_flags flags) {
    bool may_read = flags != CU_MEM_ACCESS_FLAGS_PROT_NONE, may_write = flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    mapping->read = may_read ? mapping->read | device : mapping->read & ~device;
    mapping->write = may_write ? mapping->write | device : mapping->write & ~device;
}

// Access for anything but a device cannot be told to the daemon: such memory stays with the driver.
void record_access(CUdeviceptr address, uint64_t size, const CUmemAccessDesc* desc, size_t count) {
    Guard guard(state.lock);
    for (Mapping* mapping = state.mappings.at_least(address); mapping != nullptr && mapping->key < address + size;
         mapping = state.mappings.after(mapping)) {
        for (size_t i = 0; i < count; i++) {
            if (desc[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE)
                change_access(mapping, device_bit(desc[i].location.id), desc[i].flags);
            else if (mapping->handle->reason == kCovered)
                add_uncovered(mapping->handle->reason = wire::kReasonHostNuma, mapping->handle->size);
        }
    }
}

}  // namespace

CUresult on_cuMemCreate(CUmemGenericAllocationHandle* handle, size_t size, const CUmemAllocationProp* prop,
                        unsigned long long flags) {
    if (handle == nullptr || prop == nullptr) return real::cuMemCreate(handle, size, prop, flags);
    Reason reason = reason_for(*prop);
    Physical made{};
    CUresult result = reason == kCovered ? create_physical(size, *prop, flags, &made)
                                         : real::cuMemCreate(&made.real, size, prop, flags);
    if (result != CUDA_SUCCESS) return result;
    if (reason == kCovered && !made.exportable) reason = wire::kReasonUnexportable;
    return give_id(handle, made.real, size, *prop, reason);
}

CUresult on_cuMemRelease(CUmemGenericAllocationHandle handle) {
    Handle* found;
    bool unused = false;
    {
        Guard guard(state.lock);
        found = find_handle(handle);
        if (found != nullptr) {
            found->retains--;
            unused = retire_if_unused(found);
        }
    }
    if (found == nullptr) return real::cuMemRelease(as_passed_on(handle));
    return unused ? destroy_physical(found) : CUDA_SUCCESS;
}

CUresult on_cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                     unsigned long long flags) {
    Held held(handle);
    if (held.get() == nullptr) return real::cuMemMap(ptr, size, offset, held.real(), flags);
    CUresult result = real::cuMemMap(ptr, size, offset, held.get()->real, flags);
    if (result != CUDA_SUCCESS) return result;
    if (record_mapping(held.get(), ptr, size, offset)) return CUDA_SUCCESS;
    real::cuMemUnmap(ptr, size);  // a mapping nobody would bring back
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult on_cuMemUnmap(CUdeviceptr ptr, size_t size) {
    Mapping* chain;
    {
        Guard guard(state.lock);
        if (touches_internal(ptr, size)) return CUDA_ERROR_INVALID_VALUE;
        chain = take_mappings(ptr, size);  // before the driver's: the range may be mapped anew at once
    }
    CUresult result = real::cuMemUnmap(ptr, size);
    if (result == CUDA_SUCCESS)
        drop_mappings(chain);
    else
        put_back_mappings(chain);
    return result;
}

CUresult on_cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc* desc, size_t count) {
    {
        Guard guard(state.lock);
        if (touches_internal(ptr, size)) return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult result = real::cuMemSetAccess(ptr, size, desc, count);
    if (result == CUDA_SUCCESS && desc != nullptr) record_access(ptr, size, desc, count);
    return result;
}

CUresult on_cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* addr) {
    {
        Guard guard(state.lock);
        Mapping* mapping = mapping_at(reinterpret_cast<CUdeviceptr>(addr));
        if (mapping != nullptr && (mapping->owner != nullptr || handle == nullptr)) return CUDA_ERROR_INVALID_VALUE;
        if (mapping != nullptr) {
            mapping->handle->retains++;
            *handle = mapping->handle->key;
            return CUDA_SUCCESS;
        }
    }
    return real::cuMemRetainAllocationHandle(handle, addr);
}

CUresult on_cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* prop, CUmemGenericAllocationHandle handle) {
    {
        Guard guard(state.lock);
        Handle* found = find_handle(handle);
        if (found != nullptr && prop != nullptr) {
            *prop = found->asked;
            return CUDA_SUCCESS;
        }
    }
    return real::cuMemGetAllocationPropertiesFromHandle(prop, as_passed_on(handle));
}

}  // namespace cuda
}  // namespace gcr
