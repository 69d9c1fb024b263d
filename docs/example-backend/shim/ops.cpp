// SPDX-License-Identifier: Apache-2.0
//
// acme's operations on device memory, one driver call each, and what the agent asks besides.
#include <string.h>

#include "device/devices.h"
#include "state.h"

namespace gcr {
namespace vendor {
namespace {

using device::Entered;
using device::Facts;
using device::Properties;

// ---- devices --------------------------------------------------------------------------------------------------------

uint32_t count_devices() {
    int count = 0;
    return real::acmeDeviceCount(&count) == ACME_OK && count > 0 ? static_cast<uint32_t>(count) : 0;
}

bool ask_uuid(int device, uint8_t uuid[16]) {
    return real::acmeDeviceUuid(device, uuid) == ACME_OK;
}

Facts ask_device(int) {
    Facts facts{};
    facts.shareable = real::acmeGranularity(&facts.granularity) == ACME_OK;
    return facts;
}

// No call below needs a current device.
void enter(int, Entered*) {}
void leave(const Entered&) {}

Result synchronize(device::Owner* owner) {
    return real::acmeSynchronize(owner->device);
}

uint32_t no_captures() {
    return 0;
}

// ---- addresses ------------------------------------------------------------------------------------------------------

Result reserve(uint64_t size, uint64_t wanted, uint64_t* address) {
    uint64_t given = 0;
    Result result = real::acmeReserve(size, wanted, &given);
    if (result != ACME_OK) return result;
    if (wanted == 0 || given == wanted) {
        *address = given;
        return ACME_OK;
    }
    real::acmeUnreserve(given, size);
    return ACME_NO_MEMORY;
}

Result give_back(uint64_t address, uint64_t size) {
    return real::acmeUnreserve(address, size);
}

// ---- physical memory: all a program can ask for is the device -------------------------------------------------------

Properties plain(int device) {
    return Properties::of(device);
}

int device_of(const Properties& asked) {
    return asked.as<int>();
}

bool exportable(const Properties&) {
    return true;
}

void describe(const Properties&, wire::HandleRecord* record) {
    record->type = 1;
}

Result create(uint64_t size, const Properties& asked, uint64_t, bool, uint64_t* made) {
    return real::acmeCreate(device_of(asked), size, made);
}

Result release(uint64_t handle) {
    return real::acmeRelease(handle);
}

Result export_fd(uint64_t handle, int* descriptor) {
    return real::acmeExport(handle, descriptor);
}

Result import_fd(int descriptor, uint64_t* handle) {
    return real::acmeImport(descriptor, handle);
}

// ---- mappings: a process that maps has access -----------------------------------------------------------------------

Result map(uint64_t address, uint64_t size, uint64_t, uint64_t handle) {
    return real::acmeMap(address, size, handle);
}

Result unmap(uint64_t address, uint64_t size) {
    return real::acmeUnmap(address, size);
}

Result set_access(uint64_t, uint64_t, uint32_t, uint32_t) {
    return ACME_OK;
}

Result drop_access(uint64_t, uint64_t, uint32_t) {
    return ACME_OK;
}

// ---- bytes ----------------------------------------------------------------------------------------------------------

Result copy_to_host(void* host, uint64_t address, uint64_t size) {
    return real::acmeCopy(reinterpret_cast<uint64_t>(host), address, size);
}

Result copy_to_device(uint64_t address, const void* host, uint64_t size) {
    return real::acmeCopy(address, reinterpret_cast<uint64_t>(host), size);
}

constexpr device::DeviceOps table() {
    device::DeviceOps ops{};
    ops.vendor = wire::kThirdParty;
    ops.names = {"acmeUnmap", "", "acmeExport", "acmeImport"};
    ops.out_of_memory = ACME_NO_MEMORY;
    ops.invalid_value = ACME_INVALID;
    ops.not_supported = ACME_LACKING;
    ops.count = count_devices;
    ops.uuid = ask_uuid;
    ops.facts = ask_device;
    ops.enter = enter;
    ops.leave = leave;
    ops.synchronize = synchronize;
    ops.captures = no_captures;
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
    return ops;
}

// ---- what the agent asks besides ------------------------------------------------------------------------------------

std::atomic<bool> known_simulated{false};

void enter_thread() {
    char name[64] = {};
    if (real::acmeDeviceName(0, name, sizeof name) == ACME_OK)
        known_simulated.store(strstr(name, "SIMULATED") != nullptr);
}

bool simulated() {
    return known_simulated.load();
}

uint32_t contexts() {
    uint32_t count = 0;  // without __builtin_popcount: that is a call of libgcc, and a shim links libc alone
    for (uint32_t left = state.used.load(); left != 0; left &= left - 1) count++;
    return count;
}

Failure synchronize_devices() {
    for (int device = 0; device < device::kMaxDevices; device++) {
        if ((state.used.load() & device::device_bit(device)) == 0) continue;
        Result result = real::acmeSynchronize(device);
        if (result != ACME_OK) return {wire::kDriver, result, "failed", "acmeSynchronize"};
    }
    return {};
}

uint32_t stuck(wire::StuckRecord*, uint32_t) {
    return 0;  // the driver does not tell streams apart from outside
}

void each_lock(void (Lock::*)()) {}

void reset_after_fork() {
    state.used.store(0);
}

const VendorOps kOps = {&state, simulated, enter_thread,    contexts, synchronize_devices,
                        stuck,  each_lock, reset_after_fork};

}  // namespace

constexpr device::DeviceOps kDeviceOps = table();

State state(kDeviceOps);  // constant: a constructor of the program may call the driver before any of ours could run

const VendorOps& vendor_ops() {
    return kOps;
}

}  // namespace vendor
}  // namespace gcr
