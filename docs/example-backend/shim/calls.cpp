// SPDX-License-Identifier: Apache-2.0
//
// The calls that make, take or change memory: what the program is given instead of the driver's.
#include "hooks/calls.h"
#include "core/agent.h"
#include "core/coverage.h"
#include "device/allocations.h"
#include "device/devices.h"
#include "device/held.h"
#include "device/mappings.h"
#include "device/physical.h"
#include "state.h"

namespace gcr {
namespace vendor {
namespace {

using device::Held;
using device::Properties;

__thread int current_device = -1;

}  // namespace

// ---- devices --------------------------------------------------------------------------------------------------------

// Nothing of a device can be used before it is current somewhere: the agent begins here.
Result on_acmeSetDevice(int device) {
    Result result = real::acmeSetDevice(device);
    if (result != ACME_OK) return result;
    current_device = device;
    state.used.fetch_or(device::device_bit(device));
    start_agent(&vendor_ops());
    return result;
}

Result on_acmeResetDevice(int device) {
    Result result = real::acmeResetDevice(device);
    if (result != ACME_OK) return result;
    state.used.fetch_and(~device::device_bit(device));
    device::free_all_of(state, &state.owners[device]);  // the driver does not know that it was this device's
    return result;
}

// ---- plain allocations ----------------------------------------------------------------------------------------------

Result on_acmeAlloc(uint64_t* address, uint64_t size) {
    if (address == nullptr || size == 0 || current_device < 0) return real::acmeAlloc(address, size);  // its own error
    return device::allocate(state, &state.owners[current_device], size, address);
}

Result on_acmeFree(uint64_t address) {
    // forgotten before anything is given back: another thread may be given this address as soon as the driver has it
    device::Allocation* allocation = device::take_allocation(state, address);
    return allocation == nullptr ? real::acmeFree(address) : device::free_when_idle(state, allocation);
}

// ---- the program's own mappings: it sees ids, which outlive what is behind them -------------------------------------

Result on_acmeCreate(int device, uint64_t size, uint64_t* handle) {
    if (handle == nullptr || device::device_bit(device) == 0) return real::acmeCreate(device, size, handle);
    device::Physical made{};
    Properties asked = Properties::of(device);
    Result result = device::create_physical(state, size, asked, 0, &made);
    if (result != ACME_OK) return result;
    return device::give_id(state, made.real, size, asked, device::kCovered, handle);
}

Result on_acmeRelease(uint64_t handle) {
    Result result;
    if (device::release_reference(state, handle, &result)) return result;
    return real::acmeRelease(device::as_passed_on(handle));
}

Result on_acmeMap(uint64_t address, uint64_t size, uint64_t handle) {
    Held held(state, handle);
    Result result = real::acmeMap(address, size, held.real());
    if (result != ACME_OK || held.get() == nullptr) return result;
    result = device::record_mapping(state, held.get(), address, size, 0);
    if (result == ACME_OK) device::record_access(state, address, size, held.get()->device, true, true);
    return result;
}

Result on_acmeUnmap(uint64_t address, uint64_t size) {
    return device::unmap_range(state, address, size);
}

// Another process may hold it from now on: it is no longer ours to hand over, and a job that has it is refused.
Result on_acmeExport(uint64_t handle, int* descriptor) {
    Held held(state, handle);
    Result result = real::acmeExport(held.real(), descriptor);
    if (result != ACME_OK || held.get() == nullptr) return result;
    Guard guard(state.lock);
    device::uncover(held.get(), wire::kReasonShareableExport);
    return result;
}

Result on_acmeImport(int descriptor, uint64_t* handle) {
    Result result = real::acmeImport(descriptor, handle);
    if (result == ACME_OK) add_uncovered(wire::kReasonShareableImport, 0);
    return result;
}

}  // namespace vendor
}  // namespace gcr
