// SPDX-License-Identifier: Apache-2.0
//
// HIP's operations on device memory: one call of the runtime each.
#include "hip/ops.h"

#include <unistd.h>

#include "device/devices.h"
#include "hip/captures.h"
#include "hip/devices.h"
#include "hip/stream_order.h"

namespace gcr {
namespace hip {
namespace {

using device::Entered;
using device::Facts;
using device::Result;

// ---- devices ------------------------------------------------------------------------------------------------------

uint32_t count_devices() {
    int count = 0;
    return real::hipGetDeviceCount(&count) == hipSuccess && count > 0 ? static_cast<uint32_t>(count) : 0;
}

bool ask_uuid(int device, uint8_t uuid[16]) {
    hipUUID found{};
    if (real::hipDeviceGetUuid(&found, device) != hipSuccess) return false;
    memcpy(uuid, found.bytes, sizeof found.bytes);
    return true;
}

hipMemAllocationProp plain_memory(int device) {
    hipMemAllocationProp prop{};
    prop.type = hipMemAllocationTypePinned;
    prop.location = {hipMemLocationTypeDevice, device};
    return prop;
}

uint64_t granularity_of(int device) {
    hipMemAllocationProp prop = plain_memory(device);
    prop.requestedHandleType = hipMemHandleTypePosixFileDescriptor;
    size_t granularity = 0;
    hipError_t asked = real::hipMemGetAllocationGranularity(&granularity, &prop, hipMemAllocationGranularityMinimum);
    return asked == hipSuccess ? granularity : 0;
}

bool has_virtual_memory(int device) {
    int value = 0;
    return real::hipDeviceGetAttribute(&value, hipDeviceAttributeVirtualMemoryManagementSupported, device) ==
               hipSuccess &&
           value != 0;
}

bool export_works(int device) {
    hipMemAllocationProp prop = plain_memory(device);
    prop.requestedHandleType = hipMemHandleTypePosixFileDescriptor;
    hipMemGenericAllocationHandle_t memory = nullptr;
    if (real::hipMemCreate(&memory, granularity_of(device), &prop, 0) != hipSuccess) return false;
    int descriptor = -1;
    hipError_t exported =
        real::hipMemExportToShareableHandle(&descriptor, memory, hipMemHandleTypePosixFileDescriptor, 0);
    if (exported == hipSuccess) close_descriptor(descriptor);
    real::hipMemRelease(memory);
    return exported == hipSuccess;
}

// There is no attribute for it. It is the runtime's, not a device's: tried on one that the program uses already, since
// trying it on another would make a context there. A device without room for the try answers like one that cannot;
// then its bytes leave as copies, which is right as well.
bool runtime_exports() {
    enum : uint32_t { kUnknown, kNo, kYes };
    static std::atomic<uint32_t> known{kUnknown};
    uint32_t found = known.load(std::memory_order_relaxed);
    if (found == kUnknown) {
        uint32_t used = state.used.load(std::memory_order_relaxed);
        found = export_works(used == 0 ? 0 : __builtin_ctz(used)) ? kYes : kNo;
        known.store(found, std::memory_order_relaxed);
    }
    return found == kYes;
}

Facts ask_device(int device) {
    Facts facts{};
    if (!layout_is_known()) return facts;
    facts.granularity = granularity_of(device);
    facts.shareable = facts.granularity > 0 && has_virtual_memory(device);
    facts.copied_only = facts.shareable && !runtime_exports();
    return facts;
}

void enter(int device, Entered* entered) {
    int before = -1;
    if (real::hipGetDevice(&before) != hipSuccess) before = -1;
    entered->words[0] = static_cast<uint64_t>(before + 1);
    real::hipSetDevice(device);
}

void leave(const Entered& entered) {
    if (entered.words[0] != 0) real::hipSetDevice(static_cast<int>(entered.words[0]) - 1);
}

Result synchronize(Owner* owner) {
    CurrentDevice scope(owner->device);
    return real::hipDeviceSynchronize();
}

uint64_t used() {
    size_t free_bytes = 0, total = 0;
    return real::hipMemGetInfo(&free_bytes, &total) == hipSuccess ? total - free_bytes : 0;
}

// ---- addresses ----------------------------------------------------------------------------------------------------

Result reserve(uint64_t size, uint64_t wanted, uint64_t* address) {
    void* given = nullptr;
    hipError_t result = real::hipMemAddressReserve(&given, size, 0, pointer_at(wanted), 0);
    if (result != hipSuccess) return result;
    if (wanted == 0 || key_of(given) == wanted) {
        *address = key_of(given);
        return hipSuccess;
    }
    real::hipMemAddressFree(given, size);
    return hipErrorOutOfMemory;
}

Result give_back(uint64_t address, uint64_t size) {
    return real::hipMemAddressFree(pointer_at(address), size);
}

// ---- physical memory ----------------------------------------------------------------------------------------------

hipMemGenericAllocationHandle_t handle_of(uint64_t real) {
    return static_cast<hipMemGenericAllocationHandle_t>(pointer_at(real));
}

Properties plain(int device) {
    return Properties::of(plain_memory(device));
}

int device_of(const Properties& asked) {
    return asked.as<hipMemAllocationProp>().location.id;
}

bool exportable(const Properties& asked) {
    return (asked.as<hipMemAllocationProp>().requestedHandleType & hipMemHandleTypePosixFileDescriptor) != 0;
}

void describe(const Properties& properties, wire::HandleRecord* record) {
    auto asked = properties.as<hipMemAllocationProp>();
    record->type = asked.type;
    record->asked_types = asked.requestedHandleType;
    record->compression = asked.allocFlags.compressionType;
    record->rdma_capable = asked.allocFlags.gpuDirectRDMACapable;
    record->usage = asked.allocFlags.usage;
}

Result create(uint64_t size, const Properties& asked, uint64_t flags, bool export_too, uint64_t* real) {
    auto form = asked.as<hipMemAllocationProp>();
    if (export_too) form.requestedHandleType |= hipMemHandleTypePosixFileDescriptor;
    hipMemGenericAllocationHandle_t made = nullptr;
    hipError_t result = real::hipMemCreate(&made, size, &form, flags);
    *real = key_of(made);
    return result;
}

Result release(uint64_t real) {
    return real::hipMemRelease(handle_of(real));
}

Result export_fd(uint64_t real, int* descriptor) {
    return real::hipMemExportToShareableHandle(descriptor, handle_of(real), hipMemHandleTypePosixFileDescriptor, 0);
}

Result import_fd(int descriptor, uint64_t* real) {
    hipMemGenericAllocationHandle_t made = nullptr;
    void* passed = imports_by_value() ? pointer_at(static_cast<uint64_t>(descriptor)) : &descriptor;
    hipError_t result = real::hipMemImportFromShareableHandle(&made, passed, hipMemHandleTypePosixFileDescriptor);
    *real = key_of(made);
    return result;
}

// ---- mappings -----------------------------------------------------------------------------------------------------

Result map(uint64_t address, uint64_t size, uint64_t offset, uint64_t real) {
    return real::hipMemMap(pointer_at(address), size, offset, handle_of(real), 0);
}

Result unmap(uint64_t address, uint64_t size) {
    return real::hipMemUnmap(pointer_at(address), size);
}

uint32_t describe(hipMemAccessDesc* descriptions, uint32_t devices, hipMemAccessFlags flags, uint32_t count) {
    for (int device = 0; device < kMaxDevices; device++)
        if ((devices & device::device_bit(device)) != 0)
            descriptions[count++] = {{hipMemLocationTypeDevice, device}, flags};
    return count;
}

Result set_access(uint64_t address, uint64_t size, uint32_t read, uint32_t write) {
    hipMemAccessDesc descriptions[kMaxDevices];
    uint32_t count = describe(descriptions, write, hipMemAccessFlagsProtReadWrite, 0);
    count = describe(descriptions, read & ~write, hipMemAccessFlagsProtRead, count);
    return count == 0 ? hipSuccess : real::hipMemSetAccess(pointer_at(address), size, descriptions, count);
}

Result drop_access(uint64_t address, uint64_t size, uint32_t devices) {
    hipMemAccessDesc descriptions[kMaxDevices];
    uint32_t count = describe(descriptions, devices, hipMemAccessFlagsProtNone, 0);
    return count == 0 ? hipSuccess : real::hipMemSetAccess(pointer_at(address), size, descriptions, count);
}

// ---- bytes --------------------------------------------------------------------------------------------------------

Result copy_to_host(void* host, uint64_t address, uint64_t size) {
    return real::hipMemcpyDtoH(host, pointer_at(address), size);
}

Result copy_to_device(uint64_t address, const void* host, uint64_t size) {
    return real::hipMemcpyHtoD(pointer_at(address), host, size);
}

// Within a device the call returns while the copy is on its way.
Result copy_within(uint64_t to, uint64_t from, uint64_t size) {
    hipError_t result = real::hipMemcpyDtoD(pointer_at(to), pointer_at(from), size);
    return result == hipSuccess ? real::hipDeviceSynchronize() : result;
}

constexpr device::DeviceOps table() {
    device::DeviceOps ops{};
    ops.vendor = wire::kAmd;
    ops.names = {"hipMemUnmap", "hipMemSetAccess", "hipMemExportToShareableHandle", "hipMemImportFromShareableHandle"};
    ops.quirks = device::kOneMappingACall;  // a run of mappings only since ROCm 6.4
    ops.out_of_memory = hipErrorOutOfMemory;
    ops.invalid_value = hipErrorInvalidValue;
    ops.not_supported = hipErrorNotSupported;
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
    ops.used = used;
    ops.set_access = set_access;
    ops.drop_access = drop_access;
    ops.copy_to_host = copy_to_host;
    ops.copy_to_device = copy_to_device;
    ops.copy_within = copy_within;
    ops.capturing = capturing;
    ops.idle = idle;
    ops.mark = mark;
    ops.passed = passed;
    ops.follow = follow;
    ops.forget_event = forget_event;
    return ops;
}

}  // namespace

constexpr device::DeviceOps kDeviceOps = table();

State state(kDeviceOps);  // constant: a constructor of the program may call the runtime before any of ours could run

}  // namespace hip
}  // namespace gcr
