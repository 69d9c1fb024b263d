// SPDX-License-Identifier: Apache-2.0
//
// Plain device memory, host memory, and what a pointer is.
#include "front.h"

// ---- kinds of memory --------------------------------------------------------------------------------------------
bool front_is_huge_1g(aclrtMemAttr attribute) {
    return attribute == ACL_HBM_MEM_HUGE1G || attribute == ACL_HBM_MEM_P2P_HUGE1G || attribute == ACL_MEM_HUGE1G ||
           attribute == ACL_MEM_P2P_HUGE1G;
}

bool front_is_device_memory(aclrtMemAttr attribute) {
    return attribute == ACL_HBM_MEM_HUGE || attribute == ACL_HBM_MEM_NORMAL ||
           (attribute >= ACL_HBM_MEM_P2P_HUGE && attribute <= ACL_MEM_P2P_HUGE1G);
}

size_t front_granularity(aclrtMemAttr attribute) {
    size_t granularity = sim_machine_config()->granularity;
    return front_is_huge_1g(attribute) && granularity < FRONT_HUGE_1G ? FRONT_HUGE_1G : granularity;
}

static bool valid_policy(aclrtMemMallocPolicy policy, bool* huge_1g) {
    int pages = policy & ACL_MEM_MALLOC_PAGE_MASK;
    *huge_1g = pages == ACL_MEM_MALLOC_HUGE1G_ONLY || pages == ACL_MEM_MALLOC_HUGE1G_ONLY_P2P;
    return policy >= 0 && pages <= ACL_MEM_MALLOC_HUGE1G_ONLY_P2P;
}

// ---- allocations --------------------------------------------------------------------------------------------------
static aclError allocate(void** out, size_t size, aclrtMemMallocPolicy policy) {
    bool huge_1g;
    REQUIRE(out && size && size < SIZE_MAX / 2 && valid_policy(policy, &huge_1g));
    if (huge_1g) size = (size + FRONT_HUGE_1G - 1) / FRONT_HUGE_1G * FRONT_HUGE_1G;
    LOCK();
    CONTEXT(context);
    struct sim_allocation* made;
    sim_result result = sim_allocate(context, size, SIM_ALLOCATION_DEVICE, &made);
    if (!result) *out = (void*)made->range.start;
    return front_result(result);
}

SIM_API aclError aclrtMalloc(void** out, size_t size, aclrtMemMallocPolicy policy) {
    ENTER();
    return allocate(out, size, policy);
}

SIM_API aclError aclrtMallocAlign32(void** out, size_t size, aclrtMemMallocPolicy policy) {
    ENTER();
    return allocate(out, size, policy);
}

SIM_API aclError aclrtMallocCached(void** out, size_t size, aclrtMemMallocPolicy policy) {
    ENTER();
    return allocate(out, size, policy);
}

SIM_API aclError aclrtMallocWithCfg(void** out, size_t size, aclrtMemMallocPolicy policy, aclrtMallocConfig* config) {
    ENTER();
    return allocate(out, size, policy);
}

static struct sim_allocation* allocation_at(void* pointer, enum sim_allocation_kind kind) {
    struct sim_allocation* found = sim_allocation_find((uintptr_t)pointer);
    return found && found->kind == kind && found->range.start == (uintptr_t)pointer ? found : NULL;
}

static aclError release(void* pointer, enum sim_allocation_kind kind) {
    LOCK();
    struct sim_allocation* found = allocation_at(pointer, kind);
    if (!found)
        return kind == SIM_ALLOCATION_REGISTERED ? ACL_ERROR_HOST_MEMORY_NOT_REGISTERED : ACL_ERROR_RT_PARAM_INVALID;
    sim_result result = sim_context_synchronize(found->context);
    found = allocation_at(pointer, kind);  // the wait gave the lock up
    if (found) sim_allocation_free(found);
    return front_result(result);
}

SIM_API aclError aclrtFree(void* pointer) {
    ENTER();
    return release(pointer, SIM_ALLOCATION_DEVICE);
}

// ---- host memory ----------------------------------------------------------------------------------------------------
SIM_API aclError aclrtMallocHost(void** out, size_t size) {
    ENTER();
    REQUIRE(out && size);
    LOCK();
    CONTEXT(context);
    struct sim_allocation* made;
    sim_result result = sim_allocate_host(context, size, 0, &made);
    if (!result) *out = (void*)made->range.start;
    return front_result(result);
}

SIM_API aclError aclrtFreeHost(void* pointer) {
    ENTER();
    return release(pointer, SIM_ALLOCATION_HOST);
}

SIM_API aclError aclrtHostRegisterV2(void* pointer, uint64_t size, uint32_t flag) {
    ENTER();
    REQUIRE(pointer && size);
    LOCK();
    CONTEXT(context);
    return front_result(sim_register_host(context, (uintptr_t)pointer, size, flag));
}

SIM_API aclError aclrtHostUnregister(void* pointer) {
    ENTER();
    return release(pointer, SIM_ALLOCATION_REGISTERED);
}

// ---- what a pointer is ------------------------------------------------------------------------------------------------
SIM_API aclError aclrtPointerGetAttributes(const void* pointer, aclrtPtrAttributes* out) {
    LOOK();
    REQUIRE(pointer && out);
    LOCK();
    const struct sim_mapping* mapping = sim_mapping_find((uintptr_t)pointer);
    *out = (aclrtPtrAttributes){.location = {0, ACL_MEM_LOCATION_TYPE_HOST}, .pageSize = SIM_PAGE};
    if (!mapping) return ACL_SUCCESS;
    out->location = (aclrtMemLocation){mapping->physical->device, ACL_MEM_LOCATION_TYPE_DEVICE};
    out->pageSize = (uint32_t)sim_machine_config()->granularity;
    return ACL_SUCCESS;
}

static const struct sim_range* range_around(uintptr_t address) {
    const struct sim_allocation* allocation = sim_allocation_find(address);
    if (allocation) return &allocation->range;
    const struct sim_mapping* mapping = sim_mapping_find(address);
    return mapping ? &mapping->range : NULL;
}

SIM_API aclError aclrtMemGetAddressRange(void* pointer, void** base, size_t* size) {
    LOOK();
    REQUIRE(pointer);
    LOCK();
    const struct sim_range* range = range_around((uintptr_t)pointer);
    REQUIRE(range);
    if (base) *base = (void*)range->start;
    if (size) *size = range->size;
    return ACL_SUCCESS;
}
