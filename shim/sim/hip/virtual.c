// SPDX-License-Identifier: Apache-2.0
//
// Virtual memory management: reserve, create, map, share. The core knows the quirks of some real runtimes.
#include <string.h>

#include "front.h"

enum { FD_BY_VALUE_SINCE = 70100000 };  // before, hipMemImportFromShareableHandle took the address of a descriptor

static bool is_device(const hipMemLocation* location) {
    return location->type == hipMemLocationTypeDevice;
}

static bool right_type(const hipMemAllocationProp* wanted) {
    return (wanted->type == hipMemAllocationTypePinned || wanted->type == hipMemAllocationTypeUncached) &&
           is_device(&wanted->location);
}

hipError_t sim_hipMemGetAllocationGranularity(size_t* granularity, const hipMemAllocationProp* wanted,
                                              hipMemAllocationGranularity_flags option) {
    if (!granularity || !wanted || !right_type(wanted) || option > hipMemAllocationGranularityRecommended)
        return hipErrorInvalidValue;
    if ((unsigned)wanted->location.id >= sim_device_count()) return hipErrorInvalidValue;
    *granularity = sim_machine_config()->granularity;
    return hipSuccess;
}

// A hint that is not aligned is only a hint that cannot be followed.
hipError_t sim_hipMemAddressReserve(void** pointer, size_t size, size_t alignment, void* hint,
                                    unsigned long long flags) {
    if (!pointer || flags) return hipErrorInvalidValue;
    uintptr_t wanted = (uintptr_t)hint % sim_machine_config()->granularity ? 0 : (uintptr_t)hint;
    LOCK();
    struct sim_reservation* made;
    sim_result result = sim_address_reserve(size, alignment, wanted, &made);
    *pointer = result ? NULL : (void*)made->range.start;
    return front_result(result);
}

hipError_t sim_hipMemAddressFree(void* pointer, size_t size) {
    LOCK();
    return front_result(sim_address_free((uintptr_t)pointer, size));
}

hipError_t sim_hipMemCreate(hipMemGenericAllocationHandle_t* handle, size_t size, const hipMemAllocationProp* wanted,
                            unsigned long long flags) {
    if (!handle || !size || flags || !wanted || !right_type(wanted)) return hipErrorInvalidValue;
    DEVICE(wanted->location.id);
    if (wanted->requestedHandleType & ~(unsigned)hipMemHandleTypePosixFileDescriptor) return hipErrorNotSupported;
    if (size % sim_machine_config()->granularity) return hipErrorInvalidValue;
    LOCK();
    struct sim_physical* made;
    sim_result result = sim_physical_create((unsigned)wanted->location.id, size, &made);
    if (result) return front_result(result);
    made->exportable = wanted->requestedHandleType != 0;
    _Static_assert(sizeof *wanted <= sizeof made->properties, "a place for the properties");
    memcpy(made->properties, wanted, sizeof *wanted);
    *handle = (hipMemGenericAllocationHandle_t)made->id_range.start;
    return hipSuccess;
}

#define HANDLE(name, handle)                                          \
    struct sim_physical* name = sim_physical_find((uintptr_t)handle); \
    if (!name) return hipErrorInvalidValue

hipError_t sim_hipMemRelease(hipMemGenericAllocationHandle_t handle) {
    LOCK();
    HANDLE(physical, handle);
    sim_physical_release_handle(physical);
    return hipSuccess;
}

hipError_t sim_hipMemMap(void* pointer, size_t size, size_t offset, hipMemGenericAllocationHandle_t handle,
                         unsigned long long flags) {
    if (!pointer || !size || offset || flags) return hipErrorInvalidValue;
    LOCK();
    HANDLE(physical, handle);
    if (size != physical->size) return hipErrorInvalidValue;
    return front_result(sim_address_map((uintptr_t)pointer, size, offset, physical));
}

// All devices' streams are waited for, and whole mappings without a hole are unmapped.
hipError_t sim_hipMemUnmap(void* pointer, size_t size) {
    if (!pointer || !size) return hipErrorInvalidValue;
    LOCK();
    for (struct sim_context* context = sim_contexts(); context; context = context->next)
        if (context->alive) sim_context_synchronize(context);
    if (!sim_address_covered((uintptr_t)pointer, size)) return hipErrorInvalidValue;
    return front_result(sim_address_unmap((uintptr_t)pointer, size));
}

static bool valid_access(const hipMemAccessDesc* wanted) {
    bool known = wanted->flags == hipMemAccessFlagsProtNone || wanted->flags == hipMemAccessFlagsProtRead ||
                 wanted->flags == hipMemAccessFlagsProtReadWrite;
    return known && is_device(&wanted->location) && (unsigned)wanted->location.id < sim_device_count();
}

hipError_t sim_hipMemSetAccess(void* pointer, size_t size, const hipMemAccessDesc* wanted, size_t count) {
    if (!pointer || !size || !wanted || !count) return hipErrorInvalidValue;
    for (size_t i = 0; i < count; i++)
        if (!valid_access(&wanted[i])) return hipErrorInvalidValue;
    LOCK();
    sim_result result = SIM_OK;
    for (size_t i = 0; i < count && !result; i++)
        result = sim_address_set_access((uintptr_t)pointer, size, (unsigned)wanted[i].location.id,
                                        (enum sim_access)wanted[i].flags);
    return front_result(result);
}

hipError_t sim_hipMemGetAccess(unsigned long long* flags, const hipMemLocation* location, void* pointer) {
    if (!flags || !location || !pointer || !is_device(location)) return hipErrorInvalidValue;
    if ((unsigned)location->id >= sim_device_count()) return hipErrorInvalidValue;
    LOCK();
    const struct sim_mapping* mapping = sim_mapping_find((uintptr_t)pointer);
    if (!mapping || mapping->reservation->internal) return hipErrorInvalidValue;
    *flags = mapping->access[location->id];
    return hipSuccess;
}

hipError_t sim_hipMemRetainAllocationHandle(hipMemGenericAllocationHandle_t* handle, void* address) {
    if (!handle || !address) return hipErrorInvalidValue;
    LOCK();
    const struct sim_mapping* mapping = sim_mapping_find((uintptr_t)address);
    if (!mapping || mapping->reservation->internal) return hipErrorInvalidValue;
    mapping->physical->handles++;
    *handle = (hipMemGenericAllocationHandle_t)mapping->physical->id_range.start;
    return hipSuccess;
}

hipError_t sim_hipMemGetAllocationPropertiesFromHandle(hipMemAllocationProp* out,
                                                       hipMemGenericAllocationHandle_t handle) {
    if (!out) return hipErrorInvalidValue;
    LOCK();
    HANDLE(physical, handle);
    memcpy(out, physical->properties, sizeof *out);
    return hipSuccess;
}

// ---- between processes --------------------------------------------------------------------------------------------
hipError_t sim_hipMemExportToShareableHandle(void* out, hipMemGenericAllocationHandle_t handle,
                                             hipMemAllocationHandleType type, unsigned long long flags) {
    if (!out || flags || type != hipMemHandleTypePosixFileDescriptor) return hipErrorInvalidValue;
    LOCK();
    HANDLE(physical, handle);
    return front_result(sim_physical_export(physical, out));
}

static int descriptor_of(void* shared) {
    bool by_value = sim_machine_config()->hip_version >= FD_BY_VALUE_SINCE;
    return by_value ? (int)(intptr_t)shared : *(const int*)shared;
}

hipError_t sim_hipMemImportFromShareableHandle(hipMemGenericAllocationHandle_t* handle, void* shared,
                                               hipMemAllocationHandleType type) {
    if (!handle || !shared || type != hipMemHandleTypePosixFileDescriptor) return hipErrorInvalidValue;
    LOCK();
    struct sim_physical* physical;
    sim_result result = sim_physical_import(descriptor_of(shared), &physical);
    if (result) return front_result(result);
    hipMemAllocationProp known = {.type = hipMemAllocationTypePinned,
                                  .requestedHandleType = type,
                                  .location = {hipMemLocationTypeDevice, (int)physical->device}};
    memcpy(physical->properties, &known, sizeof known);
    *handle = (hipMemGenericAllocationHandle_t)physical->id_range.start;
    return hipSuccess;
}
