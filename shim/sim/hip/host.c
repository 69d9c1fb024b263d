// SPDX-License-Identifier: Apache-2.0
//
// Page-locked host memory.
#include "capture.h"
#include "front.h"

#define HOST_FLAGS 0xe0000007u      // portable, mapped, write-combined, NUMA, coherent, non-coherent
#define REGISTER_FLAGS 0x8000000fu  // portable, mapped, IO, coarse-grained, uncached

hipError_t sim_hipHostMalloc(void** pointer, size_t size, unsigned int flags) {
    if (!pointer || flags & ~HOST_FLAGS) return hipErrorInvalidValue;
    *pointer = NULL;
    if (!size) return hipSuccess;
    LOCK();
    CONTEXT(context);
    UNSAFE_IN_CAPTURE();
    struct sim_allocation* made;
    sim_result result = sim_allocate_host(context, size, flags, &made);
    if (!result) *pointer = (void*)made->range.start;
    return front_result(result);
}

hipError_t sim_hipHostAlloc(void** pointer, size_t size, unsigned int flags) {
    return hipHostMalloc(pointer, size, flags);
}

hipError_t sim_hipMallocHost(void** pointer, size_t size) {
    return hipHostMalloc(pointer, size, hipHostMallocDefault);
}

hipError_t sim_hipMemAllocHost(void** pointer, size_t size) {
    return hipHostMalloc(pointer, size, hipHostMallocDefault);
}

static struct sim_allocation* find(const void* pointer, enum sim_allocation_kind kind) {
    struct sim_allocation* found = sim_allocation_find((uintptr_t)pointer);
    return found && found->kind == kind && found->range.start == (uintptr_t)pointer ? found : NULL;
}

hipError_t sim_hipHostFree(void* pointer) {
    if (!pointer) return hipSuccess;
    LOCK();
    struct sim_allocation* found = find(pointer, SIM_ALLOCATION_HOST);
    if (!found) return hipErrorInvalidValue;
    uint64_t id = found->id;
    sim_context_synchronize(found->context);
    found = find(pointer, SIM_ALLOCATION_HOST);  // the wait gave sim_lock away
    if (found && found->id == id) sim_allocation_free(found);
    return hipSuccess;
}

hipError_t sim_hipFreeHost(void* pointer) {
    return sim_hipHostFree(pointer);
}

hipError_t sim_hipHostRegister(void* pointer, size_t size, unsigned int flags) {
    if (!pointer || !size || flags & ~REGISTER_FLAGS) return hipErrorInvalidValue;
    LOCK();
    CONTEXT(context);
    if (sim_reservation_find((uintptr_t)pointer)) return hipErrorInvalidValue;
    return front_result(sim_register_host(context, (uintptr_t)pointer, size, flags));
}

hipError_t sim_hipHostUnregister(void* pointer) {
    LOCK();
    struct sim_allocation* found = find(pointer, SIM_ALLOCATION_REGISTERED);
    if (!found) return hipErrorHostMemoryNotRegistered;
    sim_allocation_free(found);
    return hipSuccess;
}

static struct sim_allocation* around(const void* pointer) {
    struct sim_allocation* found = sim_allocation_find((uintptr_t)pointer);
    bool host = found && (found->kind == SIM_ALLOCATION_HOST || found->kind == SIM_ALLOCATION_REGISTERED);
    return host ? found : NULL;
}

hipError_t sim_hipHostGetDevicePointer(void** device, void* host, unsigned int flags) {
    if (!device || flags) return hipErrorInvalidValue;
    LOCK();
    if (!around(host)) return hipErrorInvalidValue;
    *device = host;
    return hipSuccess;
}

hipError_t sim_hipHostGetFlags(unsigned int* flags, void* host) {
    if (!flags) return hipErrorInvalidValue;
    LOCK();
    const struct sim_allocation* found = around(host);
    if (!found) return hipErrorInvalidValue;
    *flags = found->flags;
    return hipSuccess;
}
