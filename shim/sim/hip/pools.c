// SPDX-License-Identifier: Apache-2.0
//
// Stream-ordered memory. One pool per device, and those the program makes: all give memory at once and take it back in
// stream order.
#include <stdlib.h>

#include "front.h"

struct sim_pool {
    unsigned device;
    bool owned;  // made by the program
    uint64_t threshold;
    bool reuse_off[4];  // by attribute; kept, and not followed
};

static struct sim_pool defaults[SIM_MAX_DEVICES];
static struct sim_pool* currents[SIM_MAX_DEVICES];

#define POOL(pool) \
    if (!sim_object_is_locked(pool, SIM_POOL)) return hipErrorInvalidValue

static hipMemPool_t default_pool(unsigned device) {
    defaults[device].device = device;
    if (!sim_object_is_locked(&defaults[device], SIM_POOL)) sim_object_add_locked(&defaults[device], SIM_POOL);
    return &defaults[device];
}

static struct sim_pool* pool_in_use(unsigned device) {
    return currents[device] ? currents[device] : default_pool(device);
}

// ---- allocations --------------------------------------------------------------------------------------------------
// pool: null for the one in use
static hipError_t allocate(void** pointer, size_t size, hipMemPool_t pool, struct sim_stream* stream) {
    if (stream->capture) return hipErrorNotSupported;  // memory nodes of graphs are not simulated
    *pointer = NULL;
    if (!size) return hipSuccess;
    struct sim_allocation* made;
    sim_result result = sim_allocate(stream->context, size, SIM_ALLOCATION_POOL, &made);
    if (result) return front_result(result);
    made->pool = pool ? pool : pool_in_use(made->device);
    *pointer = (void*)made->range.start;
    return hipSuccess;
}

hipError_t sim_hipMallocAsync(void** pointer, size_t size, hipStream_t handle) {
    if (!pointer) return hipErrorInvalidValue;
    LOCK();
    STREAM(stream, handle);
    return allocate(pointer, size, NULL, stream);
}

hipError_t sim_hipMallocFromPoolAsync(void** pointer, size_t size, hipMemPool_t pool, hipStream_t handle) {
    if (!pointer) return hipErrorInvalidValue;
    LOCK();
    POOL(pool);
    STREAM(stream, handle);
    return allocate(pointer, size, pool, stream);
}

hipError_t sim_hipFreeAsync(void* pointer, hipStream_t stream) {
    if (!pointer) return hipErrorInvalidValue;
    LOCK();
    struct sim_allocation* found = sim_allocation_find((uintptr_t)pointer);
    if (!found || found->range.start != (uintptr_t)pointer || found->kind > SIM_ALLOCATION_POOL)
        return hipErrorInvalidValue;
    return front_submit(stream, sim_free_operation(found));
}

// ---- pools --------------------------------------------------------------------------------------------------------
hipError_t sim_hipDeviceGetDefaultMemPool(hipMemPool_t* pool, int device) {
    if (!pool) return hipErrorInvalidValue;
    DEVICE(device);
    LOCK();
    *pool = default_pool((unsigned)device);
    return hipSuccess;
}

hipError_t sim_hipDeviceGetMemPool(hipMemPool_t* pool, int device) {
    if (!pool) return hipErrorInvalidValue;
    DEVICE(device);
    LOCK();
    *pool = pool_in_use((unsigned)device);
    return hipSuccess;
}

hipError_t sim_hipDeviceSetMemPool(int device, hipMemPool_t pool) {
    DEVICE(device);
    LOCK();
    POOL(pool);
    currents[device] = pool;
    return hipSuccess;
}

hipError_t sim_hipMemPoolCreate(hipMemPool_t* pool, const hipMemPoolProps* wanted) {
    if (!pool || !wanted || wanted->allocType != hipMemAllocationTypePinned) return hipErrorInvalidValue;
    if (wanted->location.type != hipMemLocationTypeDevice) return hipErrorInvalidValue;
    DEVICE(wanted->location.id);
    struct sim_pool* made = calloc(1, sizeof *made);
    if (!made) return hipErrorOutOfMemory;
    *made = (struct sim_pool){.device = (unsigned)wanted->location.id, .owned = true};
    LOCK();
    sim_object_add_locked(made, SIM_POOL);
    *pool = made;
    return hipSuccess;
}

hipError_t sim_hipMemPoolDestroy(hipMemPool_t pool) {
    LOCK();
    POOL(pool);
    if (!pool->owned) return hipErrorInvalidValue;
    if (currents[pool->device] == pool) currents[pool->device] = NULL;
    sim_object_remove_locked(pool);
    free(pool);
    return hipSuccess;
}

hipError_t sim_hipMemPoolTrimTo(hipMemPool_t pool, size_t keep) {
    LOCK();
    POOL(pool);
    return hipSuccess;
}

static bool is_flag(hipMemPoolAttr attribute) {
    return attribute <= hipMemPoolReuseAllowInternalDependencies;
}

static bool is_known(hipMemPoolAttr attribute) {
    return attribute >= hipMemPoolReuseFollowEventDependencies && attribute <= hipMemPoolAttrUsedMemHigh;
}

hipError_t sim_hipMemPoolGetAttribute(hipMemPool_t pool, hipMemPoolAttr attribute, void* value) {
    LOCK();
    POOL(pool);
    if (!value || !is_known(attribute)) return hipErrorInvalidValue;
    if (is_flag(attribute))
        *(int*)value = !pool->reuse_off[attribute];
    else
        *(uint64_t*)value = attribute == hipMemPoolAttrReleaseThreshold ? pool->threshold : 0;
    return hipSuccess;
}

hipError_t sim_hipMemPoolSetAttribute(hipMemPool_t pool, hipMemPoolAttr attribute, void* value) {
    LOCK();
    POOL(pool);
    if (!value || !is_known(attribute)) return hipErrorInvalidValue;
    if (is_flag(attribute)) pool->reuse_off[attribute] = *(int*)value == 0;
    if (attribute == hipMemPoolAttrReleaseThreshold) pool->threshold = *(uint64_t*)value;
    return hipSuccess;
}
