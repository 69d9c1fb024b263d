// SPDX-License-Identifier: Apache-2.0
//
// What a pointer is: cuPointerGetAttribute and its plural.
#include <string.h>

#include "front.h"

enum attribute {
    ATTRIBUTE_CONTEXT = 1,
    ATTRIBUTE_MEMORY_TYPE = 2,
    ATTRIBUTE_DEVICE_POINTER = 3,
    ATTRIBUTE_HOST_POINTER = 4,
    ATTRIBUTE_SYNC_MEMOPS = 6,
    ATTRIBUTE_BUFFER_ID = 7,
    ATTRIBUTE_IS_MANAGED = 8,
    ATTRIBUTE_DEVICE_ORDINAL = 9,
    ATTRIBUTE_LEGACY_IPC = 10,
    ATTRIBUTE_RANGE_START = 11,
    ATTRIBUTE_RANGE_SIZE = 12,
    ATTRIBUTE_MAPPED = 13,
    ATTRIBUTE_HANDLE_TYPES = 14,
    ATTRIBUTE_GPU_DIRECT = 15,
    ATTRIBUTE_ACCESS_FLAGS = 16,
    ATTRIBUTE_POOL = 17,
    ATTRIBUTE_MAPPING_SIZE = 18,
    ATTRIBUTE_MAPPING_START = 19,
    ATTRIBUTE_BLOCK_ID = 20,
    ATTRIBUTE_END = 23,
};

// Everything the attributes are made of, for one pointer.
struct subject {
    bool known;
    bool host;  // page-locked host memory
    bool managed;
    bool legacy;  // from cuMemAlloc: what cuIpcGetMemHandle takes
    struct sim_context* context;
    unsigned device;
    struct sim_range range;
    struct sim_range block;  // of device memory that holds it
    uint64_t id;
    uint64_t handle_types;
    bool gpu_direct;
    unsigned access;
    CUmemoryPool pool;
};

static struct subject describe_allocation(const struct sim_allocation* found) {
    bool host = found->kind == SIM_ALLOCATION_HOST || found->kind == SIM_ALLOCATION_REGISTERED;
    bool pooled = found->kind == SIM_ALLOCATION_POOL, plain = found->kind == SIM_ALLOCATION_DEVICE;
    const struct sim_mapping* mapping = sim_mapping_find(found->range.start);
    return (struct subject){.known = true,
                            .host = host,
                            .managed = found->kind == SIM_ALLOCATION_MANAGED,
                            .legacy = plain,
                            .gpu_direct = plain,
                            .access = SIM_ACCESS_WRITE,
                            .pool = found->pool,
                            .context = pooled ? NULL : found->context,
                            .device = found->device,
                            .range = found->range,
                            .block = mapping ? mapping->range : found->range,
                            .id = found->id};
}

static struct subject describe_mapping(const struct sim_mapping* found) {
    CUmemAllocationProp asked;
    memcpy(&asked, found->physical->properties, sizeof asked);
    return (struct subject){.known = true,
                            .device = found->physical->device,
                            .range = found->reservation->range,
                            .block = found->range,
                            .access = found->access[found->physical->device],
                            .gpu_direct = asked.allocFlags.gpuDirectRDMACapable,
                            .id = found->physical->id_range.start,
                            .handle_types = found->physical->exportable ? HANDLE_POSIX_FD : 0};
}

static struct subject describe(CUdeviceptr pointer) {
    const struct sim_allocation* allocation = sim_allocation_find(pointer);
    if (allocation) return describe_allocation(allocation);
    const struct sim_mapping* mapping = sim_mapping_find(pointer);
    if (mapping && !mapping->reservation->internal) return describe_mapping(mapping);
    return (struct subject){.known = false};
}

#define PUT(type, value)                 \
    do {                                 \
        type put_ = (value);             \
        memcpy(out, &put_, sizeof put_); \
        return CUDA_SUCCESS;             \
    } while (0)

static CUresult device_side(const struct subject* subject, enum attribute attribute, CUdeviceptr pointer, void* out) {
    switch (attribute) {
        case ATTRIBUTE_CONTEXT:
            PUT(CUcontext, subject->context);
        case ATTRIBUTE_MEMORY_TYPE:
            PUT(unsigned, subject->host ? MEMORY_HOST : MEMORY_DEVICE);
        case ATTRIBUTE_DEVICE_POINTER:
            PUT(CUdeviceptr, pointer);
        case ATTRIBUTE_HOST_POINTER:
            if (subject->host || subject->managed) PUT(void*, (void*)(uintptr_t)pointer);
            memset(out, 0, sizeof(void*));  // written, and an error all the same
            return CUDA_ERROR_INVALID_VALUE;
        case ATTRIBUTE_SYNC_MEMOPS:
            PUT(unsigned, subject->managed);
        case ATTRIBUTE_BUFFER_ID:
            PUT(uint64_t, subject->id);
        case ATTRIBUTE_IS_MANAGED:
            PUT(unsigned, subject->managed);
        case ATTRIBUTE_DEVICE_ORDINAL:
            PUT(int, (int)subject->device);
        default:
            return CUDA_ERROR_INVALID_VALUE;
    }
}

static CUresult range_side(const struct subject* subject, enum attribute attribute, void* out) {
    switch (attribute) {
        case ATTRIBUTE_LEGACY_IPC:
            PUT(unsigned, subject->legacy);
        case ATTRIBUTE_RANGE_START:
            PUT(CUdeviceptr, subject->range.start);
        case ATTRIBUTE_RANGE_SIZE:
            PUT(size_t, subject->range.size);
        case ATTRIBUTE_MAPPED:
            PUT(unsigned, 1);
        case ATTRIBUTE_HANDLE_TYPES:
            PUT(uint64_t, subject->handle_types);
        case ATTRIBUTE_GPU_DIRECT:
            PUT(unsigned, subject->gpu_direct);
        case ATTRIBUTE_ACCESS_FLAGS:
            PUT(unsigned, subject->access);
        case ATTRIBUTE_POOL:
            PUT(CUmemoryPool, subject->pool);
        case ATTRIBUTE_MAPPING_SIZE:
            PUT(size_t, subject->block.size);
        case ATTRIBUTE_MAPPING_START:
            PUT(CUdeviceptr, subject->block.start);
        case ATTRIBUTE_BLOCK_ID:
            PUT(uint64_t, subject->id);
        default:
            return CUDA_ERROR_INVALID_VALUE;
    }
}

static CUresult get(const struct subject* subject, int attribute, CUdeviceptr pointer, void* out) {
    if (attribute <= 0 || attribute >= ATTRIBUTE_END || !out) return CUDA_ERROR_INVALID_VALUE;
    if (!subject->known) return CUDA_ERROR_INVALID_VALUE;
    if (attribute <= ATTRIBUTE_DEVICE_ORDINAL) return device_side(subject, (enum attribute)attribute, pointer, out);
    return range_side(subject, (enum attribute)attribute, out);
}

SIM_API CUresult cuPointerGetAttribute(void* out, int attribute, CUdeviceptr pointer) {
    ENTER();
    LOCK();
    struct subject subject = describe(pointer);
    return get(&subject, attribute, pointer, out);
}

static size_t size_of(int attribute) {
    switch (attribute) {
        case ATTRIBUTE_MEMORY_TYPE:
        case ATTRIBUTE_SYNC_MEMOPS:
        case ATTRIBUTE_IS_MANAGED:
        case ATTRIBUTE_DEVICE_ORDINAL:
        case ATTRIBUTE_LEGACY_IPC:
        case ATTRIBUTE_MAPPED:
        case ATTRIBUTE_GPU_DIRECT:
        case ATTRIBUTE_ACCESS_FLAGS:
            return 4;
        default:
            return 8;
    }
}

// What does not apply is answered with zero (-2 for the device), not with an error; ranges are left as they were, and
// memory the driver does not know is its own host pointer.
static void answer_nothing(const struct subject* subject, int attribute, CUdeviceptr pointer, void* out) {
    if (attribute == ATTRIBUTE_RANGE_START || attribute == ATTRIBUTE_RANGE_SIZE) return;
    memset(out, 0, size_of(attribute));
    if (attribute == ATTRIBUTE_DEVICE_ORDINAL) *(int*)out = -2;
    if (attribute == ATTRIBUTE_HOST_POINTER && !subject->known) *(CUdeviceptr*)out = pointer;
}

SIM_API CUresult cuPointerGetAttributes(unsigned count, int* wanted, void** out, CUdeviceptr pointer) {
    ENTER();
    if (!wanted || !out) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    struct subject subject = describe(pointer);
    for (unsigned i = 0; i < count; i++) {
        if (wanted[i] <= 0 || wanted[i] >= ATTRIBUTE_END || !out[i]) return CUDA_ERROR_INVALID_VALUE;
        if (get(&subject, wanted[i], pointer, out[i])) answer_nothing(&subject, wanted[i], pointer, out[i]);
    }
    return CUDA_SUCCESS;
}

SIM_API CUresult cuPointerSetAttribute(const void* value, int attribute, CUdeviceptr pointer) {
    ENTER();
    if (!value || attribute != ATTRIBUTE_SYNC_MEMOPS) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    return describe(pointer).known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
