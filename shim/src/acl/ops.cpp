// SPDX-License-Identifier: Apache-2.0
//
// ACL's operations on device memory: one call of the runtime each. What is special to it:
//   no descriptors: shareable handles are names that hold nothing, so bytes leave as copies · mapping gives the memory's
//   own device access, and only peers are told apart · a handle is mapped whole, an unmap is told no size
#include "acl/ops.h"

#include "acl/contexts.h"
#include "acl/memory.h"
#include "acl/streams.h"
#include "device/devices.h"

namespace gcr {
namespace acl {
namespace {

using device::Entered;
using device::Facts;
using device::Result;

// ---- devices ------------------------------------------------------------------------------------------------------

uint32_t count_devices() {
    uint32_t count = 0;
    return real::aclrtGetDeviceCount(&count) == ACL_SUCCESS ? count : 0;
}

bool ask_uuid(int device, uint8_t uuid[16]) {
    aclrtUuid found{};
    static_assert(sizeof found.bytes == 16, "as on the wire");
    if (real::aclrtDeviceGetUuid(device, &found) != ACL_SUCCESS) return false;
    memcpy(uuid, found.bytes, sizeof found.bytes);
    return true;
}

Facts ask_device(int device) {
    Facts facts{};
    facts.copied_only = true;
    facts.granularity = granularity_of(device, ACL_HBM_MEM_HUGE);
    facts.shareable = facts.granularity > 0 && real::has_aclrtMallocPhysical() && real::has_aclrtMapMem();
    return facts;
}

void enter(int device, Entered* entered) {
    Context* context = pin_context_of(device);
    entered->words[0] = reinterpret_cast<uint64_t>(context);
    if (context != nullptr) real::aclrtSetCurrentContext(context->handle);
}

void leave(const Entered& entered) {
    unpin_context(reinterpret_cast<Context*>(entered.words[0]));
}

Result synchronize(Owner* owner) {
    PinnedContext context(pin_context_of(owner->device));
    if (context.device() != owner->device) return ACL_SUCCESS;  // no thread can have enqueued anything
    CurrentContext scope(context.handle());
    return real::aclrtSynchronizeDevice();
}

// ---- addresses ----------------------------------------------------------------------------------------------------

Result reserve(uint64_t size, uint64_t wanted, uint64_t* address) {
    void* given = nullptr;
    aclError result = real::aclrtReserveMemAddress(&given, size, 0, pointer_at(wanted), 0);
    if (result == ACL_SUCCESS) *address = key_of(given);
    return result;
}

Result give_back(uint64_t address, uint64_t) {
    return real::aclrtReleaseMemAddress(pointer_at(address));
}

// ---- physical memory ----------------------------------------------------------------------------------------------

Properties plain(int device) {
    return Properties::of(memory_of_kind(device, ACL_HBM_MEM_HUGE));
}

int device_of(const Properties& asked) {
    return static_cast<int>(asked.as<aclrtPhysicalMemProp>().location.id);
}

bool exportable(const Properties&) {
    return true;  // its bytes are copied: there is nothing to ask for
}

void describe(const Properties& asked, wire::HandleRecord* record) {
    record->type = static_cast<uint32_t>(asked.as<aclrtPhysicalMemProp>().memAttr);
}

Result create(uint64_t size, const Properties& asked, uint64_t flags, bool, uint64_t* real) {
    auto form = asked.as<aclrtPhysicalMemProp>();
    aclrtDrvMemHandle made = nullptr;
    aclError result = real::aclrtMallocPhysical(&made, size, &form, flags);
    *real = key_of(made);
    return result;
}

Result release(uint64_t real) {
    return real::aclrtFreePhysical(pointer_at(real));
}

Result export_fd(uint64_t, int*) {
    return ACL_ERROR_RT_FEATURE_NOT_SUPPORT;
}

Result import_fd(int, uint64_t*) {
    return ACL_ERROR_RT_FEATURE_NOT_SUPPORT;
}

// ---- mappings -----------------------------------------------------------------------------------------------------

Result map(uint64_t address, uint64_t size, uint64_t offset, uint64_t real) {
    return real::aclrtMapMem(pointer_at(address), size, offset, pointer_at(real), 0);
}

Result unmap(uint64_t address, uint64_t) {
    return real::aclrtUnmapMem(pointer_at(address));
}

// The device whose memory is mapped there has access by the mapping itself.
uint32_t own_bit(uint64_t address) {
    aclrtPtrAttributes found{};
    if (real::aclrtPointerGetAttributes(pointer_at(address), &found) != ACL_SUCCESS) return 0;
    bool on_device = found.location.type == ACL_MEM_LOCATION_TYPE_DEVICE;
    return on_device ? device::device_bit(static_cast<int>(found.location.id)) : 0;
}

size_t describe(aclrtMemAccessDesc* descriptions, uint32_t devices, aclrtMemAccessFlags flags, size_t count) {
    for (int device = 0; device < kMaxDevices; device++)
        if ((devices & device::device_bit(device)) != 0)
            descriptions[count++] = {flags, {static_cast<uint32_t>(device), ACL_MEM_LOCATION_TYPE_DEVICE}, {}};
    return count;
}

Result set_access(uint64_t address, uint64_t size, uint32_t read, uint32_t write) {
    if ((read | write) == 0) return ACL_SUCCESS;
    aclrtMemAccessDesc descriptions[kMaxDevices];
    uint32_t peers = ~own_bit(address);
    size_t count = describe(descriptions, write & peers, ACL_RT_MEM_ACCESS_FLAGS_READWRITE, 0);
    count = describe(descriptions, read & ~write & peers, ACL_RT_MEM_ACCESS_FLAGS_READ, count);
    return count == 0 ? ACL_SUCCESS : real::aclrtMemSetAccess(pointer_at(address), size, descriptions, count);
}

Result drop_access(uint64_t address, uint64_t size, uint32_t devices) {
    if (devices == 0) return ACL_SUCCESS;
    aclrtMemAccessDesc descriptions[kMaxDevices];
    size_t count = describe(descriptions, devices & ~own_bit(address), ACL_RT_MEM_ACCESS_FLAGS_NONE, 0);
    return count == 0 ? ACL_SUCCESS : real::aclrtMemSetAccess(pointer_at(address), size, descriptions, count);
}

// ---- bytes --------------------------------------------------------------------------------------------------------

Result copy_to_host(void* host, uint64_t address, uint64_t size) {
    return real::aclrtMemcpy(host, size, pointer_at(address), size, ACL_MEMCPY_DEVICE_TO_HOST);
}

Result copy_to_device(uint64_t address, const void* host, uint64_t size) {
    return real::aclrtMemcpy(pointer_at(address), size, host, size, ACL_MEMCPY_HOST_TO_DEVICE);
}

Result copy_within(uint64_t to, uint64_t from, uint64_t size) {
    return real::aclrtMemcpy(pointer_at(to), size, pointer_at(from), size, ACL_MEMCPY_DEVICE_TO_DEVICE);
}

constexpr device::DeviceOps table() {
    device::DeviceOps ops{};
    ops.vendor = wire::kAscend;
    ops.names = {"aclrtUnmapMem", "aclrtMemSetAccess", "aclrtMemExportToShareableHandle",
                 "aclrtMemImportFromShareableHandle"};
    ops.quirks = device::kOneMappingACall | device::kMapsWithAccess;
    ops.out_of_memory = ACL_ERROR_RT_MEMORY_ALLOCATION;
    ops.invalid_value = ACL_ERROR_RT_PARAM_INVALID;
    ops.not_supported = ACL_ERROR_RT_FEATURE_NOT_SUPPORT;
    ops.count = count_devices;
    ops.uuid = ask_uuid;
    ops.facts = ask_device;
    ops.enter = enter;
    ops.leave = leave;
    ops.synchronize = synchronize;
    ops.captures = captures_in_progress;
    ops.reserve = reserve;
    ops.give_back = give_back;
    ops.plain = plain;
    ops.device_of = device_of;
    ops.exportable = exportable;
    ops.describe = describe;
    ops.create = create;
    ops.release = release;
    ops.export_fd = export_fd;
    ops.import_fd = import_fd;
    ops.map = map;
    ops.unmap = unmap;
    ops.set_access = set_access;
    ops.drop_access = drop_access;
    ops.copy_to_host = copy_to_host;
    ops.copy_to_device = copy_to_device;
    ops.copy_within = copy_within;
    return ops;
}

}  // namespace

constexpr device::DeviceOps kDeviceOps = table();

State state(kDeviceOps);  // constant: a constructor of the program may call before any of ours could run

}  // namespace acl
}  // namespace gcr
