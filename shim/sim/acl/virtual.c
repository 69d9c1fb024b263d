// SPDX-License-Identifier: Apache-2.0
//
// Virtual memory: reserve, create, map. Where ACL differs from CUDA: a wished address is given or refused, a mapping is
// accessible at once, one reservation holds the memory of one device, and local or imported memory, never both.
#include <string.h>

#include "front.h"

#define TiB ((uintptr_t)1 << 40)
static const uintptr_t WISH_LOW = 16 * TiB, WISH_HIGH = 24 * TiB;
static const uintptr_t NO_UC_LOW = 40 * TiB, NO_UC_HIGH = 224 * TiB;

static bool valid_properties(const aclrtPhysicalMemProp* wanted) {
    return wanted && wanted->handleType == ACL_MEM_HANDLE_TYPE_NONE &&
           wanted->allocationType == ACL_MEM_ALLOCATION_TYPE_PINNED && front_is_device_memory(wanted->memAttr) &&
           wanted->location.type == ACL_MEM_LOCATION_TYPE_DEVICE;
}

SIM_API aclError aclrtMemGetAllocationGranularity(aclrtPhysicalMemProp* wanted, aclrtMemGranularityOptions option,
                                                  size_t* granularity) {
    LOOK();
    REQUIRE(granularity && valid_properties(wanted));
    REQUIRE(option == ACL_RT_MEM_ALLOC_GRANULARITY_MINIMUM || option == ACL_RT_MEM_ALLOC_GRANULARITY_RECOMMENDED);
    *granularity = front_granularity(wanted->memAttr);
    return ACL_SUCCESS;
}

// ---- addresses ------------------------------------------------------------------------------------------------------
static size_t power_of_two_above(size_t size) {
    size_t power = 1;
    while (power < size) power <<= 1;
    return power;
}

// "Aligned to 2^n" below 1 GiB; the vendor does not say which n, so that of the whole size is asked for.
static bool valid_wish(uintptr_t wish, size_t size, uintptr_t low, uintptr_t high) {
    size_t alignment = size < FRONT_HUGE_1G ? power_of_two_above(size) : FRONT_HUGE_1G;
    return wish >= low && size <= high - low && wish <= high - size && wish % alignment == 0;
}

static aclError reserve(void** out, size_t size, uintptr_t wish) {
    LOCK();
    struct sim_reservation* made;
    sim_result result = sim_address_reserve(size, 0, wish, &made);
    if (result) return front_result(result);
    if (wish && made->range.start != wish) {  // taken: the core, like CUDA, gave another
        sim_address_free(made->range.start, size);
        return ACL_ERROR_RT_PARAM_INVALID;
    }
    *out = (void*)made->range.start;
    return ACL_SUCCESS;
}

static size_t rounded(size_t size) {
    size_t granularity = sim_machine_config()->granularity;
    return (size + granularity - 1) / granularity * granularity;
}

SIM_API aclError aclrtReserveMemAddress(void** out, size_t size, size_t alignment, void* wish, uint64_t flags) {
    ENTER();
    REQUIRE(out && size && size < SIZE_MAX / 2 && !alignment && flags <= 1);
    size = rounded(size);
    REQUIRE(!wish || valid_wish((uintptr_t)wish, size, WISH_LOW, WISH_HIGH));
    return reserve(out, size, (uintptr_t)wish);
}

SIM_API aclError aclrtReserveMemAddressNoUCMemory(void** out, size_t size, size_t alignment, void* wish,
                                                  uint64_t flags) {
    ENTER();
    REQUIRE(out && size && size % FRONT_HUGE_1G == 0 && !alignment && flags <= 1);
    REQUIRE(valid_wish((uintptr_t)wish, size, NO_UC_LOW, NO_UC_HIGH));
    return reserve(out, size, (uintptr_t)wish);
}

SIM_API aclError aclrtReleaseMemAddress(void* pointer) {
    ENTER();
    LOCK();
    const struct sim_reservation* found = sim_reservation_find((uintptr_t)pointer);
    REQUIRE(found && found->range.start == (uintptr_t)pointer);
    return front_result(sim_address_free(found->range.start, found->range.size));
}

// ---- physical memory ------------------------------------------------------------------------------------------------
#define HANDLE(name, handle)                                                      \
    struct sim_physical* name = sim_physical_find((uint64_t)(uintptr_t)(handle)); \
    REQUIRE(name)

SIM_API aclError aclrtMallocPhysical(aclrtDrvMemHandle* out, size_t size, const aclrtPhysicalMemProp* wanted,
                                     uint64_t flags) {
    ENTER();
    REQUIRE(out && !flags && valid_properties(wanted));
    DEVICE((int32_t)wanted->location.id);
    REQUIRE(size && size % front_granularity(wanted->memAttr) == 0);
    LOCK();
    struct sim_physical* made;
    sim_result result = sim_physical_create(wanted->location.id, size, &made);
    if (result) return front_result(result);
    made->exportable = true;  // nothing has to be asked for at creation
    _Static_assert(sizeof *wanted <= sizeof made->properties, "a place for the properties");
    memcpy(made->properties, wanted, sizeof *wanted);
    *out = (void*)made->id_range.start;
    return ACL_SUCCESS;
}

// While it is mapped the memory stays: the core drops it with the last mapping.
SIM_API aclError aclrtFreePhysical(aclrtDrvMemHandle handle) {
    ENTER();
    LOCK();
    HANDLE(physical, handle);
    sim_physical_release_handle(physical);
    return ACL_SUCCESS;
}

SIM_API aclError aclrtMemGetAllocationPropertiesFromHandle(aclrtDrvMemHandle handle, aclrtPhysicalMemProp* out) {
    LOOK();
    REQUIRE(out);
    LOCK();
    HANDLE(physical, handle);
    memcpy(out, physical->properties, sizeof *out);
    return ACL_SUCCESS;
}

// ---- mappings -------------------------------------------------------------------------------------------------------
static unsigned device_of(const struct sim_physical* physical) {
    aclrtPhysicalMemProp properties;
    memcpy(&properties, physical->properties, sizeof properties);
    return properties.location.id;  // of imported memory: the device it was imported for
}

static bool may_join(const struct sim_reservation* where, const struct sim_physical* physical) {
    if (!where->mappings.count) return true;
    const struct sim_physical* other = ((const struct sim_mapping*)where->mappings.items[0])->physical;
    return device_of(other) == device_of(physical) && other->imported == physical->imported;
}

SIM_API aclError aclrtMapMem(void* pointer, size_t size, size_t offset, aclrtDrvMemHandle handle, uint64_t flags) {
    ENTER();
    REQUIRE(!offset && !flags);
    LOCK();
    HANDLE(physical, handle);
    const struct sim_reservation* where = sim_reservation_find((uintptr_t)pointer);
    REQUIRE(where && size == physical->size && may_join(where, physical));
    sim_result result = sim_address_map((uintptr_t)pointer, size, 0, physical);
    if (!result) result = sim_address_set_access((uintptr_t)pointer, size, device_of(physical), SIM_ACCESS_WRITE);
    return front_result(result);
}

// The mapping that begins here, of the program's own, or return.
#define MAPPING(name, pointer)                                         \
    struct sim_mapping* name = sim_mapping_find((uintptr_t)(pointer)); \
    REQUIRE(name && name->range.start == (uintptr_t)(pointer) && !name->reservation->internal)

SIM_API aclError aclrtUnmapMem(void* pointer) {
    ENTER();
    LOCK();
    MAPPING(mapping, pointer);
    return front_result(sim_address_unmap(mapping->range.start, mapping->range.size));
}

static bool valid_access(const aclrtMemAccessDesc* wanted) {
    return (wanted->flags == ACL_RT_MEM_ACCESS_FLAGS_NONE || wanted->flags == ACL_RT_MEM_ACCESS_FLAGS_READ ||
            wanted->flags == ACL_RT_MEM_ACCESS_FLAGS_READWRITE) &&
           wanted->location.type == ACL_MEM_LOCATION_TYPE_DEVICE && wanted->location.id < sim_device_count();
}

SIM_API aclError aclrtMemSetAccess(void* pointer, size_t size, aclrtMemAccessDesc* wanted, size_t count) {
    LOOK();
    REQUIRE(pointer && wanted && count);
    for (size_t i = 0; i < count; i++) REQUIRE(valid_access(&wanted[i]));
    LOCK();
    MAPPING(mapping, pointer);
    REQUIRE(mapping->range.size == size);
    for (size_t i = 0; i < count; i++) mapping->access[wanted[i].location.id] = (uint8_t)wanted[i].flags;
    return ACL_SUCCESS;
}

SIM_API aclError aclrtMemGetAccess(void* pointer, aclrtMemLocation* location, uint64_t* flags) {
    LOOK();
    REQUIRE(pointer && location && flags && location->type == ACL_MEM_LOCATION_TYPE_DEVICE);
    DEVICE((int32_t)location->id);
    LOCK();
    MAPPING(mapping, pointer);
    *flags = mapping->access[location->id];
    return ACL_SUCCESS;
}

SIM_API aclError aclrtMemRetainAllocationHandle(void* pointer, aclrtDrvMemHandle* out) {
    LOOK();
    REQUIRE(pointer && out);
    LOCK();
    MAPPING(mapping, pointer);
    mapping->physical->handles++;
    *out = (void*)mapping->physical->id_range.start;
    return ACL_SUCCESS;
}
