// SPDX-License-Identifier: Apache-2.0
//
// What a pointer is.
#include <string.h>

#include "front.h"

enum { SINCE_7 = 70000000 };  // before, a pointer the runtime does not know was an error

struct subject {
    bool known;
    bool host;  // page-locked host memory
    bool managed;
    bool plain;  // what hipIpcGetMemHandle takes
    unsigned device;
    unsigned flags;
    struct sim_range range;
    uint64_t id;
    unsigned access;
    unsigned handle_types;
    hipMemPool_t pool;
};

static struct subject describe_allocation(const struct sim_allocation* found) {
    return (struct subject){
        .known = true,
        .host = found->kind == SIM_ALLOCATION_HOST || found->kind == SIM_ALLOCATION_REGISTERED,
        .managed = found->kind == SIM_ALLOCATION_MANAGED,
        .plain = found->kind == SIM_ALLOCATION_DEVICE,
        .device = found->device,
        .flags = found->flags,
        .range = found->range,
        .id = found->id,
        .access = hipMemAccessFlagsProtReadWrite,
        .pool = found->pool,
    };
}

static struct subject describe_mapping(const struct sim_mapping* found) {
    const struct sim_physical* physical = found->physical;
    return (struct subject){
        .known = true,
        .device = physical->device,
        .range = found->range,
        .id = physical->id_range.start,
        .access = found->access[physical->device],
        .handle_types = physical->exportable ? hipMemHandleTypePosixFileDescriptor : hipMemHandleTypeNone,
    };
}

static struct subject describe(const void* pointer) {
    const struct sim_allocation* allocation = sim_allocation_find((uintptr_t)pointer);
    if (allocation) return describe_allocation(allocation);
    const struct sim_mapping* mapping = sim_mapping_find((uintptr_t)pointer);
    if (mapping && !mapping->reservation->internal) return describe_mapping(mapping);
    return (struct subject){.known = false};
}

static hipMemoryType type_of(const struct subject* subject) {
    if (subject->managed) return hipMemoryTypeManaged;
    return subject->host ? hipMemoryTypeHost : hipMemoryTypeDevice;
}

hipError_t sim_hipPointerGetAttributes(hipPointerAttribute_t* out, const void* pointer) {
    bool forgiving = sim_machine_config()->hip_version >= SINCE_7;
    if (!out) return hipErrorInvalidValue;
    LOCK();
    struct subject subject = describe(pointer);
    if (!subject.known && !forgiving) return hipErrorInvalidValue;
    *out = (hipPointerAttribute_t){.type = hipMemoryTypeUnregistered, .device = hipInvalidDeviceId};
    if (!subject.known) return hipSuccess;
    bool readable = subject.host || subject.managed;
    *out = (hipPointerAttribute_t){.type = type_of(&subject),
                                   .device = (int)subject.device,
                                   .devicePointer = (void*)pointer,
                                   .hostPointer = readable ? (void*)pointer : NULL,
                                   .isManaged = subject.managed,
                                   .allocationFlags = subject.flags};
    return hipSuccess;
}

// ---- one by one ---------------------------------------------------------------------------------------------------
#define PUT(type, value)                 \
    do {                                 \
        type put_ = (value);             \
        memcpy(out, &put_, sizeof put_); \
        return hipSuccess;               \
    } while (0)

static hipError_t range_side(const struct subject* subject, hipPointer_attribute attribute, void* out) {
    switch (attribute) {
        case HIP_POINTER_ATTRIBUTE_RANGE_START_ADDR:
            PUT(uintptr_t, subject->range.start);
        case HIP_POINTER_ATTRIBUTE_RANGE_SIZE:
            PUT(size_t, subject->range.size);
        case HIP_POINTER_ATTRIBUTE_MAPPED:
            PUT(unsigned, 1);
        case HIP_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
            PUT(uint64_t, subject->handle_types);
        case HIP_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
            PUT(unsigned, !subject->host);
        case HIP_POINTER_ATTRIBUTE_ACCESS_FLAGS:
            PUT(unsigned, subject->access);
        case HIP_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
            PUT(hipMemPool_t, subject->pool);
        default:
            return hipErrorInvalidValue;
    }
}

static hipError_t get(const struct subject* subject, hipPointer_attribute attribute, void* pointer, void* out) {
    bool readable = subject->host || subject->managed;
    switch (attribute) {
        case HIP_POINTER_ATTRIBUTE_MEMORY_TYPE:
            PUT(hipMemoryType, type_of(subject));
        case HIP_POINTER_ATTRIBUTE_DEVICE_POINTER:
            PUT(void*, pointer);
        case HIP_POINTER_ATTRIBUTE_HOST_POINTER:
            if (readable) PUT(void*, pointer);
            return hipErrorInvalidValue;
        case HIP_POINTER_ATTRIBUTE_SYNC_MEMOPS:
            PUT(unsigned, 0);
        case HIP_POINTER_ATTRIBUTE_BUFFER_ID:
            PUT(uint64_t, subject->id);
        case HIP_POINTER_ATTRIBUTE_IS_MANAGED:
            PUT(unsigned, subject->managed);
        case HIP_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
            PUT(int, (int)subject->device);
        case HIP_POINTER_ATTRIBUTE_IS_LEGACY_HIP_IPC_CAPABLE:
            PUT(unsigned, subject->plain);
        default:
            return range_side(subject, attribute, out);
    }
}

hipError_t sim_hipPointerGetAttribute(void* data, hipPointer_attribute attribute, hipDeviceptr_t pointer) {
    if (!data) return hipErrorInvalidValue;
    LOCK();
    struct subject subject = describe(pointer);
    return subject.known ? get(&subject, attribute, pointer, data) : hipErrorInvalidValue;
}

// What does not apply is left as it was, and is no error.
hipError_t sim_hipDrvPointerGetAttributes(unsigned int count, hipPointer_attribute* attributes, void** data,
                                          hipDeviceptr_t pointer) {
    if (!attributes || !data) return hipErrorInvalidValue;
    LOCK();
    struct subject subject = describe(pointer);
    for (unsigned i = 0; subject.known && i < count; i++) {
        if (!data[i]) return hipErrorInvalidValue;
        get(&subject, attributes[i], pointer, data[i]);
    }
    return hipSuccess;
}
