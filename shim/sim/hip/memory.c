// SPDX-License-Identifier: Apache-2.0
//
// Allocations: device, host, managed; what is known of a range.
#include "capture.h"
#include "front.h"

enum { PITCH_ALIGNMENT = 256 };

static hipError_t allocate(void** pointer, size_t size, enum sim_allocation_kind kind) {
    if (!pointer) return hipErrorInvalidValue;
    *pointer = NULL;
    if (!size) return hipSuccess;
    LOCK();
    CONTEXT(context);
    UNSAFE_IN_CAPTURE();
    struct sim_allocation* made;
    sim_result result = sim_allocate(context, size, kind, &made);
    if (!result) *pointer = (void*)made->range.start;
    return front_result(result);
}

// The real runtime asks how much is left, for its log.
static hipError_t allocate_or_ask(void** pointer, size_t size, enum sim_allocation_kind kind) {
    hipError_t result = allocate(pointer, size, kind);
    size_t left, total;
    if (result == hipErrorOutOfMemory) hipMemGetInfo(&left, &total);
    return result;
}

hipError_t sim_hipMalloc(void** pointer, size_t size) {
    return allocate_or_ask(pointer, size, SIM_ALLOCATION_DEVICE);
}

enum { MALLOC_FINEGRAINED = 1, MALLOC_SIGNAL_MEMORY = 2, MALLOC_UNCACHED = 3, MALLOC_CONTIGUOUS = 4 };

hipError_t sim_hipExtMallocWithFlags(void** pointer, size_t size, unsigned int flags) {
    if (flags > MALLOC_CONTIGUOUS || (flags == MALLOC_SIGNAL_MEMORY && size != 8)) return hipErrorInvalidValue;
    return allocate_or_ask(pointer, size, SIM_ALLOCATION_DEVICE);
}

hipError_t sim_hipMallocManaged(void** pointer, size_t size, unsigned int flags) {
    if (!size || (flags != hipMemAttachGlobal && flags != hipMemAttachHost)) return hipErrorInvalidValue;
    return allocate_or_ask(pointer, size, SIM_ALLOCATION_MANAGED);
}

hipError_t sim_hipMallocPitch(void** pointer, size_t* pitch, size_t width, size_t height) {
    if (!pointer || !pitch) return hipErrorInvalidValue;
    *pitch = (width + PITCH_ALIGNMENT - 1) / PITCH_ALIGNMENT * PITCH_ALIGNMENT;
    return allocate_or_ask(pointer, *pitch * height, SIM_ALLOCATION_DEVICE);
}

hipError_t sim_hipMemAllocPitch(hipDeviceptr_t* pointer, size_t* pitch, size_t width, size_t height,
                                unsigned int element) {
    return hipMallocPitch(pointer, pitch, width, height);
}

static bool may_free(const struct sim_allocation* found, const void* pointer) {
    return found && found->range.start == (uintptr_t)pointer && found->kind <= SIM_ALLOCATION_MANAGED;
}

// Waits for the device first, except for what came from a pool: so since 7.0.
hipError_t sim_hipFree(void* pointer) {
    if (!pointer) return hipSuccess;
    LOCK();
    struct sim_allocation* found = sim_allocation_find((uintptr_t)pointer);
    if (!may_free(found, pointer)) return hipErrorInvalidValue;
    UNSAFE_IN_CAPTURE();
    if (found->kind != SIM_ALLOCATION_POOL) {
        sim_result result = sim_context_synchronize(found->context);
        if (result) return front_result(result);
        found = sim_allocation_find((uintptr_t)pointer);  // the wait gave sim_lock away
    }
    if (!may_free(found, pointer)) return hipErrorInvalidValue;
    sim_allocation_free(found);
    return hipSuccess;
}

// ---- what is known ------------------------------------------------------------------------------------------------
hipError_t sim_hipMemGetInfo(size_t* free, size_t* total) {
    LOCK();
    uint64_t bytes = sim_machine_config()->memory;
    if (total) *total = bytes;
    if (free) *free = bytes - sim_machine_used(sim_device_real(front_device()));
    return hipSuccess;
}

static bool range_of(uintptr_t pointer, struct sim_range* range) {
    const struct sim_allocation* found = sim_allocation_find(pointer);
    const struct sim_mapping* mapping = found ? NULL : sim_mapping_find(pointer);
    *range = (struct sim_range){0, 0};
    if (found) *range = found->range;
    if (mapping && !mapping->reservation->internal) *range = mapping->range;
    return range->size;
}

hipError_t sim_hipMemGetAddressRange(hipDeviceptr_t* base, size_t* size, hipDeviceptr_t pointer) {
    LOCK();
    struct sim_range range;
    if (!range_of((uintptr_t)pointer, &range)) return hipErrorNotFound;
    if (base) *base = (void*)range.start;
    if (size) *size = range.size;
    return hipSuccess;
}

hipError_t sim_hipMemPtrGetInfo(void* pointer, size_t* size) {
    LOCK();
    struct sim_range range;
    if (!size || !range_of((uintptr_t)pointer, &range)) return hipErrorInvalidValue;
    *size = range.size;
    return hipSuccess;
}

// ---- managed memory: advice changes nothing here ------------------------------------------------------------------
static hipError_t check_managed(const void* pointer, size_t size) {
    LOCK();
    const struct sim_allocation* found = sim_allocation_find((uintptr_t)pointer);
    bool managed = found && found->kind == SIM_ALLOCATION_MANAGED;
    return managed && size && (uintptr_t)pointer + size <= found->range.start + found->range.size
               ? hipSuccess
               : hipErrorInvalidValue;
}

hipError_t sim_hipMemAdvise(const void* pointer, size_t size, hipMemoryAdvise advice, int device) {
    return check_managed(pointer, size);
}

hipError_t sim_hipMemPrefetchAsync(const void* pointer, size_t size, int device, hipStream_t stream) {
    return check_managed(pointer, size);
}
