// SPDX-License-Identifier: Apache-2.0
//
// Allocations: device, host, stream-ordered, managed.
#include <stdlib.h>

#include "capture.h"
#include "front.h"

enum { PITCH_ALIGNMENT = 512 };

static CUresult allocate(CUdeviceptr* pointer, size_t size, enum sim_allocation_kind kind) {
    LOCK();
    CONTEXT(context);
    if (pointer && !size) *pointer = 0;
    if (!pointer || !size) return CUDA_ERROR_INVALID_VALUE;
    UNSAFE_IN_CAPTURE();
    struct sim_allocation* made;
    sim_result result = sim_allocate(context, size, kind, &made);
    if (!result) *pointer = made->range.start;
    return front_result(result);
}

SIM_API CUresult cuMemAlloc_v2(CUdeviceptr* pointer, size_t size) {
    ENTER();
    return allocate(pointer, size, SIM_ALLOCATION_DEVICE);
}

SIM_API CUresult cuMemAllocPitch_v2(CUdeviceptr* pointer, size_t* pitch, size_t width, size_t height,
                                    unsigned element) {
    ENTER();
    bool known = element == 4 || element == 8 || element == 16;
    if (!pitch || !width || !height || !known) return CUDA_ERROR_INVALID_VALUE;
    *pitch = (width + PITCH_ALIGNMENT - 1) / PITCH_ALIGNMENT * PITCH_ALIGNMENT;
    return allocate(pointer, *pitch * height, SIM_ALLOCATION_DEVICE);
}

enum { ATTACH_GLOBAL = 1, ATTACH_HOST = 2 };

SIM_API CUresult cuMemAllocManaged(CUdeviceptr* pointer, size_t size, unsigned flags) {
    ENTER();
    if (flags != ATTACH_GLOBAL && flags != ATTACH_HOST) return CUDA_ERROR_INVALID_VALUE;
    return allocate(pointer, size, SIM_ALLOCATION_MANAGED);
}

// The driver waits for the device before it takes memory away.
SIM_API CUresult cuMemFree_v2(CUdeviceptr pointer) {
    ENTER();
    if (!pointer) return CUDA_SUCCESS;
    LOCK();
    struct sim_allocation* found = sim_allocation_find(pointer);
    if (!found || found->range.start != pointer || found->kind > SIM_ALLOCATION_MANAGED)
        return CUDA_ERROR_INVALID_VALUE;
    UNSAFE_IN_CAPTURE();
    sim_result result = sim_context_synchronize(found->context);
    if (result) return front_result(result);
    found = sim_allocation_find(pointer);  // the wait gave sim_lock away
    if (!found) return CUDA_ERROR_INVALID_VALUE;
    sim_allocation_free(found);
    return CUDA_SUCCESS;
}

SIM_API CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* size, CUdeviceptr pointer) {
    ENTER();
    LOCK();
    CONTEXT(context);
    (void)context;
    struct sim_range range = {0, 0};
    const struct sim_allocation* found = sim_allocation_find(pointer);
    const struct sim_mapping* mapping = found ? NULL : sim_mapping_find(pointer);
    if (found && found->kind <= SIM_ALLOCATION_IMPORTED) range = found->range;
    if (mapping && !mapping->reservation->internal) range = mapping->range;
    if (!range.size) return CUDA_ERROR_NOT_FOUND;
    if (base) *base = range.start;
    if (size) *size = range.size;
    return CUDA_SUCCESS;
}

// ---- host memory --------------------------------------------------------------------------------------------------
enum { HOST_ALLOC_FLAGS = 7, HOST_REGISTER_FLAGS = 15, HOST_DEVICE_MAPPED = 2 };

SIM_API CUresult cuMemHostAlloc(void** pointer, size_t size, unsigned flags) {
    ENTER();
    if (!pointer || flags & ~(unsigned)HOST_ALLOC_FLAGS) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    CONTEXT(context);
    *pointer = NULL;
    if (!size) return CUDA_SUCCESS;
    UNSAFE_IN_CAPTURE();
    struct sim_allocation* made;
    sim_result result = sim_allocate_host(context, size, flags, &made);
    if (!result) *pointer = (void*)made->range.start;
    return front_result(result);
}

SIM_API CUresult cuMemAllocHost_v2(void** pointer, size_t size) {
    return cuMemHostAlloc(pointer, size, 0);
}

SIM_API CUresult cuMemFreeHost(void* pointer) {
    ENTER();
    if (!pointer) return CUDA_SUCCESS;
    LOCK();
    struct sim_allocation* found = sim_allocation_find((uintptr_t)pointer);
    if (!found || found->range.start != (uintptr_t)pointer || found->kind != SIM_ALLOCATION_HOST)
        return CUDA_ERROR_INVALID_VALUE;
    uint64_t id = found->id;
    sim_context_synchronize(found->context);
    found = sim_allocation_find((uintptr_t)pointer);
    if (found && found->id == id) sim_allocation_free(found);
    return CUDA_SUCCESS;
}

SIM_API CUresult cuMemHostRegister_v2(void* pointer, size_t size, unsigned flags) {
    ENTER();
    if (!pointer || !size || flags & ~(unsigned)HOST_REGISTER_FLAGS) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    CONTEXT(context);
    if (sim_reservation_find((uintptr_t)pointer)) return CUDA_ERROR_INVALID_VALUE;
    return front_result(sim_register_host(context, (uintptr_t)pointer, size, flags));
}

SIM_API CUresult cuMemHostUnregister(void* pointer) {
    ENTER();
    LOCK();
    CONTEXT(context);
    (void)context;
    struct sim_allocation* found = sim_allocation_find((uintptr_t)pointer);
    if (!found) return front_result(SIM_HOST_NOT_REGISTERED);
    if (found->kind != SIM_ALLOCATION_REGISTERED || found->range.start != (uintptr_t)pointer)
        return CUDA_ERROR_INVALID_VALUE;
    sim_allocation_free(found);
    return CUDA_SUCCESS;
}

static struct sim_allocation* find_host(const void* pointer) {
    struct sim_allocation* found = sim_allocation_find((uintptr_t)pointer);
    bool host = found && (found->kind == SIM_ALLOCATION_HOST || found->kind == SIM_ALLOCATION_REGISTERED);
    return host ? found : NULL;
}

SIM_API CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* device, void* pointer, unsigned flags) {
    ENTER();
    if (!device || flags) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    CONTEXT(context);
    (void)context;
    if (!find_host(pointer)) return CUDA_ERROR_INVALID_VALUE;
    *device = (CUdeviceptr)(uintptr_t)pointer;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuMemHostGetFlags(unsigned* flags, void* pointer) {
    ENTER();
    if (!flags) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    const struct sim_allocation* found = find_host(pointer);
    if (!found) return CUDA_ERROR_INVALID_VALUE;
    *flags = found->flags | HOST_DEVICE_MAPPED;  // with unified addressing all of it is
    return CUDA_SUCCESS;
}

// ---- stream-ordered memory ----------------------------------------------------------------------------------------
// One pool per device, and those the program makes: all give memory at once and take it back in stream order.
struct sim_pool {
    unsigned device;
    bool owned;  // made by the program
    uint64_t threshold;
};

static struct sim_pool defaults[SIM_MAX_DEVICES];
static struct sim_pool* current_pool[SIM_MAX_DEVICES];

struct sim_pool* front_default_pool(unsigned device) {
    defaults[device].device = device;
    if (!sim_object_is_locked(&defaults[device], SIM_POOL)) sim_object_add_locked(&defaults[device], SIM_POOL);
    return &defaults[device];
}

static CUresult allocate_async(CUdeviceptr* pointer, size_t size, CUstream handle) {
    if (!pointer) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    CUresult result;
    struct sim_stream* stream = front_stream(handle, &result);
    if (!stream) return result;
    if (stream->capture) return CUDA_ERROR_NOT_SUPPORTED;  // graph memory nodes are not simulated
    if (stream->context->error) return front_result(stream->context->error);
    *pointer = 0;
    if (!size) return CUDA_SUCCESS;
    struct sim_allocation* made;
    result = front_result(sim_allocate(stream->context, size, SIM_ALLOCATION_POOL, &made));
    if (!result) *pointer = made->range.start;
    return result;
}

SIM_API CUresult cuMemAllocAsync(CUdeviceptr* pointer, size_t size, CUstream stream) {
    ENTER();
    return allocate_async(pointer, size, stream);
}

SIM_API CUresult cuMemAllocFromPoolAsync(CUdeviceptr* pointer, size_t size, CUmemoryPool pool, CUstream stream) {
    ENTER();
    return allocate_async(pointer, size, stream);
}

SIM_API CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream) {
    ENTER();
    if (!pointer) return CUDA_SUCCESS;
    LOCK();
    struct sim_allocation* found = sim_allocation_find(pointer);
    if (!found || found->range.start != pointer || found->kind > SIM_ALLOCATION_POOL) return CUDA_ERROR_INVALID_VALUE;
    return front_submit(stream, sim_free_operation(found));
}

SIM_API CUresult cuDeviceGetDefaultMemPool(CUmemoryPool* pool, CUdevice device) {
    ENTER();
    if (!pool) return CUDA_ERROR_INVALID_VALUE;
    DEVICE(device);
    LOCK();
    *pool = front_default_pool((unsigned)device);
    return CUDA_SUCCESS;
}

SIM_API CUresult cuDeviceGetMemPool(CUmemoryPool* pool, CUdevice device) {
    ENTER();
    if (!pool) return CUDA_ERROR_INVALID_VALUE;
    DEVICE(device);
    LOCK();
    *pool = current_pool[device] ? current_pool[device] : front_default_pool((unsigned)device);
    return CUDA_SUCCESS;
}

SIM_API CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool) {
    ENTER();
    DEVICE(device);
    LOCK();
    if (!sim_object_is_locked(pool, SIM_POOL)) return CUDA_ERROR_INVALID_VALUE;
    current_pool[device] = pool;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps* wanted) {
    ENTER();
    if (!pool || !wanted || wanted->location.type != LOCATION_DEVICE) return CUDA_ERROR_INVALID_VALUE;
    DEVICE(wanted->location.id);
    struct sim_pool* made = calloc(1, sizeof *made);
    if (!made) return CUDA_ERROR_OUT_OF_MEMORY;
    *made = (struct sim_pool){.device = (unsigned)wanted->location.id, .owned = true};
    LOCK();
    sim_object_add_locked(made, SIM_POOL);
    *pool = made;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuMemPoolDestroy(CUmemoryPool pool) {
    ENTER();
    LOCK();
    if (!sim_object_is_locked(pool, SIM_POOL) || !pool->owned) return CUDA_ERROR_INVALID_VALUE;
    if (current_pool[pool->device] == pool) current_pool[pool->device] = NULL;
    sim_object_remove_locked(pool);
    free(pool);
    return CUDA_SUCCESS;
}

SIM_API CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep) {
    ENTER();
    LOCK();
    return sim_object_is_locked(pool, SIM_POOL) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

enum {
    POOL_REUSE_FOLLOW_EVENTS = 1,
    POOL_REUSE_OPPORTUNISTIC = 2,
    POOL_REUSE_INTERNAL = 3,
    POOL_RELEASE_THRESHOLD = 4,
    POOL_COUNTERS_END = 9,
};

SIM_API CUresult cuMemPoolGetAttribute(CUmemoryPool pool, int attribute, void* value) {
    ENTER();
    LOCK();
    if (!sim_object_is_locked(pool, SIM_POOL) || !value || attribute < 1 || attribute >= POOL_COUNTERS_END)
        return CUDA_ERROR_INVALID_VALUE;
    if (attribute <= POOL_REUSE_INTERNAL)
        *(int*)value = 1;
    else
        *(uint64_t*)value = attribute == POOL_RELEASE_THRESHOLD ? pool->threshold : 0;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuMemPoolSetAttribute(CUmemoryPool pool, int attribute, void* value) {
    ENTER();
    LOCK();
    if (!sim_object_is_locked(pool, SIM_POOL) || !value || attribute < 1 || attribute >= POOL_COUNTERS_END)
        return CUDA_ERROR_INVALID_VALUE;
    if (attribute == POOL_RELEASE_THRESHOLD) pool->threshold = *(uint64_t*)value;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuMemAllocAsync_ptsz(CUdeviceptr* pointer, size_t size, CUstream stream) {
    return cuMemAllocAsync(pointer, size, per_thread(stream));
}

SIM_API CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr* pointer, size_t size, CUmemoryPool pool, CUstream stream) {
    return cuMemAllocFromPoolAsync(pointer, size, pool, per_thread(stream));
}

SIM_API CUresult cuMemFreeAsync_ptsz(CUdeviceptr pointer, CUstream stream) {
    return cuMemFreeAsync(pointer, per_thread(stream));
}
