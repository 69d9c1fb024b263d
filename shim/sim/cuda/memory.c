// SPDX-License-Identifier: Apache-2.0
//
// Allocations: device, host, managed.
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
