// SPDX-License-Identifier: Apache-2.0
//
// Virtual memory management: reserve, create, map, share.
#include <signal.h>

#include <string.h>

#include "capture.h"
#include "front.h"

static bool on_host(const CUmemAllocationProp* wanted) {
    return wanted->location.type == LOCATION_HOST_NUMA && sim_machine_has_quirk(SIM_QUIRK_HOST_NUMA);
}

static bool valid_properties(const CUmemAllocationProp* wanted) {
    return wanted && wanted->type == ALLOCATION_PINNED &&
           (wanted->location.type == LOCATION_DEVICE || on_host(wanted)) && wanted->location.id >= 0 &&
           (unsigned)wanted->location.id < sim_device_count() &&
           !(wanted->requestedHandleTypes & ~(HANDLE_POSIX_FD | HANDLE_FABRIC));
}

SIM_API CUresult cuMemGetAllocationGranularity(size_t* granularity, const CUmemAllocationProp* wanted, int option) {
    ENTER();
    if (!granularity || !wanted || option < 0 || option > 1) return CUDA_ERROR_INVALID_VALUE;
    *granularity = sim_machine_config()->granularity;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuMemAddressReserve(CUdeviceptr* pointer, size_t size, size_t alignment, CUdeviceptr hint,
                                     unsigned long long flags) {
    ENTER();
    if (!pointer || flags) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    struct sim_reservation* made;
    sim_result result = sim_address_reserve(size, alignment, hint, &made);
    if (!result) *pointer = made->range.start;
    return front_result(result);
}

SIM_API CUresult cuMemAddressFree(CUdeviceptr pointer, size_t size) {
    ENTER();
    LOCK();
    return front_result(sim_address_free(pointer, size));
}

SIM_API CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t size, const CUmemAllocationProp* wanted,
                             unsigned long long flags) {
    ENTER();
    if (!handle || flags || !wanted) return CUDA_ERROR_INVALID_VALUE;
    if (wanted->location.type == LOCATION_DEVICE) DEVICE(wanted->location.id);
    if (!valid_properties(wanted)) return CUDA_ERROR_INVALID_VALUE;
    bool fabric = wanted->requestedHandleTypes & HANDLE_FABRIC;
    if (fabric && !sim_machine_has_quirk(SIM_QUIRK_FABRIC)) return CUDA_ERROR_NOT_PERMITTED;  // no IMEX channel here
    if (wanted->requestedHandleTypes && sim_machine_has_quirk(SIM_QUIRK_NOEXPORT)) return CUDA_ERROR_NOT_SUPPORTED;
    if (!size || size % sim_machine_config()->granularity) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    struct sim_physical* made;
    sim_result result = sim_physical_create((unsigned)wanted->location.id, size, &made);
    if (result) return front_result(result);
    made->exportable = wanted->requestedHandleTypes != 0;
    made->doomed = on_host(wanted);  // r580 takes such a process, and never gives it back
    _Static_assert(sizeof *wanted <= sizeof made->properties, "a place for the properties");
    memcpy(made->properties, wanted, sizeof *wanted);
    *handle = made->id_range.start;
    return CUDA_SUCCESS;
}

// Makes the handle of a multicast object, and no more. The simulated restore fails for a process with one, as r580's.
SIM_API CUresult cuMulticastCreate(CUmemGenericAllocationHandle* handle, const CUmulticastObjectProp* wanted) {
    ENTER();
    if (!sim_machine_has_quirk(SIM_QUIRK_MULTICAST)) return CUDA_ERROR_NOT_SUPPORTED;
    if (!handle || !wanted || !wanted->size || wanted->size % sim_machine_config()->granularity)
        return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    struct sim_physical* made;
    sim_result result = sim_physical_create(0, wanted->size, &made);
    if (result) return front_result(result);
    made->doomed = true;
    *handle = made->id_range.start;
    return CUDA_SUCCESS;
}

// r580 takes a handle for an address: one it never gave out ends the program (seen on an H200), a stale one does not.
static CUresult unknown_handle(CUmemGenericAllocationHandle handle) {
    if (handle >> 48) raise(SIGSEGV);
    return CUDA_ERROR_INVALID_VALUE;
}

#define HANDLE(name, handle)                               \
    struct sim_physical* name = sim_physical_find(handle); \
    if (!name) return unknown_handle(handle)

SIM_API CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    ENTER();
    LOCK();
    HANDLE(physical, handle);
    sim_physical_release_handle(physical);
    return CUDA_SUCCESS;
}

SIM_API CUresult cuMemMap(CUdeviceptr pointer, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                          unsigned long long flags) {
    ENTER();
    if (flags) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    HANDLE(physical, handle);
    return front_result(sim_address_map(pointer, size, offset, physical));
}

SIM_API CUresult cuMemUnmap(CUdeviceptr pointer, size_t size) {
    ENTER();
    LOCK();
    return front_result(sim_address_unmap(pointer, size));
}

static bool valid_access(const CUmemAccessDesc* wanted) {
    bool known =
        wanted->flags == SIM_ACCESS_NONE || wanted->flags == SIM_ACCESS_READ || wanted->flags == SIM_ACCESS_WRITE;
    return known && wanted->location.type == LOCATION_DEVICE && wanted->location.id >= 0 &&
           (unsigned)wanted->location.id < sim_device_count();
}

SIM_API CUresult cuMemSetAccess(CUdeviceptr pointer, size_t size, const CUmemAccessDesc* wanted, size_t count) {
    ENTER();
    if (!wanted || !count) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++)
        if (!valid_access(&wanted[i])) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    sim_result result = SIM_OK;
    for (size_t i = 0; i < count && !result; i++)
        result =
            sim_address_set_access(pointer, size, (unsigned)wanted[i].location.id, (enum sim_access)wanted[i].flags);
    return front_result(result);
}

SIM_API CUresult cuMemGetAccess(unsigned long long* flags, const CUmemLocation* location, CUdeviceptr pointer) {
    ENTER();
    if (!flags || !location || location->type != LOCATION_DEVICE) return CUDA_ERROR_INVALID_VALUE;
    DEVICE(location->id);
    LOCK();
    const struct sim_mapping* mapping = sim_mapping_find(pointer);
    if (!mapping) return CUDA_ERROR_INVALID_VALUE;
    bool owner = mapping->peered && mapping->physical->device == (unsigned)location->id;
    *flags = owner ? SIM_ACCESS_WRITE : mapping->access[location->id];
    return CUDA_SUCCESS;
}

SIM_API CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* address) {
    ENTER();
    if (!handle) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    const struct sim_mapping* mapping = sim_mapping_find((uintptr_t)address);
    if (!mapping || mapping->reservation->internal) return CUDA_ERROR_INVALID_VALUE;
    mapping->physical->handles++;
    *handle = mapping->physical->id_range.start;
    return CUDA_SUCCESS;
}

// An imported handle does not carry what its maker asked for besides place and type.
SIM_API CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* out, CUmemGenericAllocationHandle handle) {
    ENTER();
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    HANDLE(physical, handle);
    memcpy(out, physical->properties, sizeof *out);
    out->type = ALLOCATION_PINNED;
    out->location = (CUmemLocation){LOCATION_DEVICE, (int)physical->device};
    return CUDA_SUCCESS;
}

static int types_of(const struct sim_physical* physical) {
    CUmemAllocationProp asked;
    memcpy(&asked, physical->properties, sizeof asked);
    return physical->exportable ? asked.requestedHandleTypes : HANDLE_NONE;
}

// A name for other nodes. There are none, so no process opens it.
static sim_result export_to_fabric(struct sim_physical* physical, char name[FABRIC_BYTES]) {
    sim_result result = sim_physical_publish(physical);
    if (result) return result;
    memset(name, 0, FABRIC_BYTES);
    memcpy(name, &physical->entry, sizeof physical->entry);
    return SIM_OK;
}

SIM_API CUresult cuMemExportToShareableHandle(void* out, CUmemGenericAllocationHandle handle, int type,
                                              unsigned long long flags) {
    ENTER();
    if (!out || flags || (type != HANDLE_POSIX_FD && type != HANDLE_FABRIC)) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    HANDLE(physical, handle);
    int types = types_of(physical);
    if (type == HANDLE_FABRIC)
        return types & type ? front_result(export_to_fabric(physical, out)) : CUDA_ERROR_INVALID_VALUE;
    if (types == HANDLE_FABRIC) return CUDA_ERROR_INVALID_VALUE;
    return front_result(sim_physical_export(physical, out));
}

SIM_API CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* descriptor, int type) {
    ENTER();
    if (!handle || type != HANDLE_POSIX_FD) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    struct sim_physical* physical;
    sim_result result = sim_physical_import((int)(intptr_t)descriptor, &physical);
    if (!result) *handle = physical->id_range.start;
    return result == SIM_INVALID_VALUE ? CUDA_ERROR_UNKNOWN : front_result(result);
}

SIM_API CUresult cuMemGetInfo_v2(size_t* free, size_t* total) {
    ENTER();
    LOCK();
    CONTEXT(context);
    uint64_t bytes = sim_machine_config()->memory;
    if (total) *total = bytes;
    if (free) *free = bytes - sim_machine_used(sim_device_real(context->device));
    return CUDA_SUCCESS;
}
