// SPDX-License-Identifier: Apache-2.0
//
// Stream-ordered memory. One pool per device, and those the program makes: all give memory at once and take it back in
// stream order. What is not in use is not reserved either.
#include <stdlib.h>

#include "capture.h"
#include "front.h"

struct sim_pool {
    unsigned device;
    bool owned;  // made by the program
    uint64_t limit;  // of what is in use; 0: none
    uint64_t threshold;
    bool reuse_off[4];  // by attribute; kept, and not followed
    uint64_t used;  // bytes asked for, and not told to be freed
    uint64_t used_most;
    uint64_t reserved_most;
    unsigned char access[SIM_MAX_DEVICES];  // of other devices; kept, and not enforced
};

#define LIMIT_GRAIN ((uint64_t)32 << 20)

static struct sim_pool defaults[SIM_MAX_DEVICES];
static struct sim_pool* current_pool[SIM_MAX_DEVICES];

static struct sim_pool* default_pool(unsigned device) {
    defaults[device].device = device;
    if (!sim_object_is_locked(&defaults[device], SIM_POOL)) sim_object_add_locked(&defaults[device], SIM_POOL);
    return &defaults[device];
}

static struct sim_pool* pool_in_use(unsigned device) {
    return current_pool[device] ? current_pool[device] : default_pool(device);
}

static uint64_t larger(uint64_t one, uint64_t other) {
    return one > other ? one : other;
}

static void count_used(struct sim_pool* pool, uint64_t size) {
    pool->used += size;
    pool->used_most = larger(pool->used_most, pool->used);
    pool->reserved_most = larger(pool->reserved_most, pool->used);
}

// As r580: by cuMemFreeAsync. What cuMemFree frees is counted for ever.
static void count_freed(const struct sim_allocation* allocation) {
    struct sim_pool* pool = allocation->pool;
    if (allocation->kind == SIM_ALLOCATION_POOL && sim_object_is_locked(pool, SIM_POOL))
        pool->used -= allocation->range.size;
}

static uint64_t limit_of(size_t wanted) {
    return (wanted + LIMIT_GRAIN - 1) / LIMIT_GRAIN * LIMIT_GRAIN;  // as r580 rounds it
}

static bool exceeds(const struct sim_pool* pool, size_t size) {
    return pool->limit && (size > pool->limit || pool->used > pool->limit - size);
}

// A stream that does not capture itself.
static sim_result check_captures_locked(struct sim_stream* stream) {
    sim_result implicit = sim_capture_check_implicit_locked(stream);
    return implicit ? implicit : sim_capture_check_unsafe_locked();
}

// pool: null for the one in use
static CUresult allocate_async(CUdeviceptr* pointer, size_t size, CUmemoryPool pool, CUstream handle) {
    if (!pointer) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    CUresult result;
    struct sim_stream* stream = front_stream(handle, &result);
    if (!stream) return result;
    if (stream->capture) return CUDA_ERROR_NOT_SUPPORTED;  // graph memory nodes are not simulated
    result = front_result(check_captures_locked(stream));
    if (result) return result;
    if (stream->context->error) return front_result(stream->context->error);
    *pointer = 0;
    if (!size) return CUDA_SUCCESS;
    if (!pool) pool = pool_in_use(stream->context->device);
    if (exceeds(pool, size)) return CUDA_ERROR_OUT_OF_MEMORY;
    struct sim_allocation* made;
    result = front_result(sim_allocate(stream->context, size, SIM_ALLOCATION_POOL, &made));
    if (result) return result;
    made->pool = pool;
    count_used(made->pool, size);
    *pointer = made->range.start;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuMemAllocAsync(CUdeviceptr* pointer, size_t size, CUstream stream) {
    ENTER();
    return allocate_async(pointer, size, NULL, stream);
}

static bool is_pool(CUmemoryPool pool) {
    LOCK();
    return sim_object_is_locked(pool, SIM_POOL);
}

SIM_API CUresult cuMemAllocFromPoolAsync(CUdeviceptr* pointer, size_t size, CUmemoryPool pool, CUstream stream) {
    ENTER();
    return is_pool(pool) ? allocate_async(pointer, size, pool, stream) : CUDA_ERROR_INVALID_VALUE;
}

SIM_API CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream) {
    ENTER();
    if (!pointer) return CUDA_SUCCESS;
    LOCK();
    struct sim_allocation* found = sim_allocation_find(pointer);
    if (!found || found->range.start != pointer || found->kind > SIM_ALLOCATION_POOL) return CUDA_ERROR_INVALID_VALUE;
    struct sim_allocation freed = *found;  // it may be gone at once
    CUresult result;
    struct sim_stream* used = front_stream(stream, &result);
    if (!used) return result;
    if (!used->capture) result = front_result(check_captures_locked(used));
    if (result) return result;
    result = front_submit(stream, sim_free_operation(found));
    if (result == CUDA_SUCCESS) count_freed(&freed);
    return result;
}

SIM_API CUresult cuDeviceGetDefaultMemPool(CUmemoryPool* pool, CUdevice device) {
    ENTER();
    if (!pool) return CUDA_ERROR_INVALID_VALUE;
    DEVICE(device);
    LOCK();
    *pool = default_pool((unsigned)device);
    return CUDA_SUCCESS;
}

SIM_API CUresult cuDeviceGetMemPool(CUmemoryPool* pool, CUdevice device) {
    ENTER();
    if (!pool) return CUDA_ERROR_INVALID_VALUE;
    DEVICE(device);
    LOCK();
    *pool = pool_in_use((unsigned)device);
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
    *made =
        (struct sim_pool){.device = (unsigned)wanted->location.id, .owned = true, .limit = limit_of(wanted->maxSize)};
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
    if (!sim_object_is_locked(pool, SIM_POOL)) return CUDA_ERROR_INVALID_VALUE;
    UNSAFE_IN_CAPTURE();
    return CUDA_SUCCESS;
}

enum {
    POOL_REUSE_FOLLOW_EVENTS = 1,
    POOL_REUSE_OPPORTUNISTIC = 2,
    POOL_REUSE_INTERNAL = 3,
    POOL_RELEASE_THRESHOLD = 4,
    POOL_RESERVED = 5,
    POOL_RESERVED_MOST = 6,
    POOL_USED = 7,
    POOL_USED_MOST = 8,
    POOL_COUNTERS_END = 9,
};

static uint64_t* most(struct sim_pool* pool, int attribute) {
    return attribute == POOL_RESERVED_MOST ? &pool->reserved_most : &pool->used_most;
}

static uint64_t counted(struct sim_pool* pool, int attribute) {
    if (attribute == POOL_RELEASE_THRESHOLD) return pool->threshold;
    bool now = attribute == POOL_RESERVED || attribute == POOL_USED;
    return now ? pool->used : *most(pool, attribute);
}

SIM_API CUresult cuMemPoolGetAttribute(CUmemoryPool pool, int attribute, void* value) {
    ENTER();
    LOCK();
    if (!sim_object_is_locked(pool, SIM_POOL) || !value || attribute < 1 || attribute >= POOL_COUNTERS_END)
        return CUDA_ERROR_INVALID_VALUE;
    UNSAFE_IN_CAPTURE();
    if (attribute <= POOL_REUSE_INTERNAL)
        *(int*)value = !pool->reuse_off[attribute];
    else
        *(uint64_t*)value = counted(pool, attribute);
    return CUDA_SUCCESS;
}

SIM_API CUresult cuMemPoolSetAttribute(CUmemoryPool pool, int attribute, void* value) {
    ENTER();
    LOCK();
    if (!sim_object_is_locked(pool, SIM_POOL) || !value || attribute < 1 || attribute >= POOL_COUNTERS_END)
        return CUDA_ERROR_INVALID_VALUE;
    if (attribute <= POOL_REUSE_INTERNAL) {
        pool->reuse_off[attribute] = *(int*)value == 0;
        return CUDA_SUCCESS;
    }
    uint64_t wanted = *(uint64_t*)value;
    if (attribute == POOL_RELEASE_THRESHOLD) {
        pool->threshold = wanted;
        return CUDA_SUCCESS;
    }
    if (attribute == POOL_RESERVED || attribute == POOL_USED || wanted) return CUDA_ERROR_INVALID_VALUE;
    *most(pool, attribute) = pool->used;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc* wanted, size_t count) {
    ENTER();
    LOCK();
    if (!sim_object_is_locked(pool, SIM_POOL) || !wanted) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++) {
        unsigned device = (unsigned)wanted[i].location.id;
        if (wanted[i].location.type != LOCATION_DEVICE || device >= sim_device_count()) return CUDA_ERROR_INVALID_VALUE;
        if (device == pool->device && wanted[i].flags != SIM_ACCESS_WRITE) return CUDA_ERROR_INVALID_VALUE;
        pool->access[device] = (unsigned char)wanted[i].flags;
    }
    return CUDA_SUCCESS;
}

SIM_API CUresult cuMemPoolGetAccess(int* flags, CUmemoryPool pool, const CUmemLocation* location) {
    ENTER();
    LOCK();
    if (!sim_object_is_locked(pool, SIM_POOL) || !flags || !location) return CUDA_ERROR_INVALID_VALUE;
    if (location->type != LOCATION_DEVICE || (unsigned)location->id >= sim_device_count())
        return CUDA_ERROR_INVALID_VALUE;
    bool own = (unsigned)location->id == pool->device;
    *flags = own ? SIM_ACCESS_WRITE : pool->access[location->id];
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
