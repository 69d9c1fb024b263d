// SPDX-License-Identifier: Apache-2.0
//
// Devices: they own memory and streams, and have peers that reach it. A reset takes with it what was allocated there;
// the runtime does not know that our memory belongs to it, so it goes right after.
#include "hip/devices.h"

#include "core/agent.h"
#include "core/sys.h"
#include "device/allocations.h"
#include "device/devices.h"
#include "device/peers.h"
#include "device/pools.h"
#include "device/streams.h"
#include "hip/vendor.h"
#include "hooks/hip_calls.h"

namespace gcr {
namespace hip {

__thread bool arrived = false;

namespace {

constexpr int kOldest = 50400000;  // 5.4: major * 10^7 + minor * 10^5
constexpr int kByValue = 70100000;

std::atomic<int> known_version{0};

int version() {
    int found = known_version.load(std::memory_order_relaxed);
    if (found == 0 && real::hipRuntimeGetVersion(&found) == hipSuccess)
        known_version.store(found, std::memory_order_relaxed);
    return found;
}

Owner* make_owner(int device) {
    Owner* made = make<Owner>();
    if (made == nullptr) return nullptr;
    made->device = device;
    Owner* before = nullptr;
    if (state.owners[device].compare_exchange_strong(before, made, std::memory_order_acq_rel)) return made;
    free(made);
    return before;
}

size_t learn_pitch_unit() {
    void* probe = nullptr;
    size_t pitch = 0;
    if (real::hipMallocPitch(&probe, &pitch, 1, 1) != hipSuccess) return 0;
    real::hipFree(probe);
    return pitch;
}

bool always(int) {
    return true;
}

void bury(int device) {
    Owner* owner = owner_of(device);
    if (owner == nullptr) return;
    device::forget_peers_of(state, owner);
    state.captures.forget_of(static_cast<uint64_t>(device));
    device::forget_streams_of(state, static_cast<uint64_t>(device));
    device::settle_all_of(state, static_cast<uint64_t>(device));
    state.carried.forget_owned_by(owner);
    state.pinned.forget_owned_by(owner);
    device::free_all_of(state, owner);
    device::free_pools_of(state, device, always);
}

// The calling thread's device may, or may no longer, use what belongs to the peer.
hipError_t peers_changed(hipError_t result, int peer, void (*change)(device::State&, Owner*, Owner*)) {
    Owner* accessor = result == hipSuccess ? current_owner() : nullptr;
    Owner* owner = accessor == nullptr ? nullptr : owner_of(peer);
    if (owner != nullptr) change(state, accessor, owner);
    return result;
}

}  // namespace

bool layout_is_known() {
    return version() >= kOldest;
}

bool imports_by_value() {
    return version() >= kByValue;
}

Owner* owner_of(int device) {
    if (device < 0 || device >= kMaxDevices) return nullptr;
    Owner* owner = state.owners[device].load(std::memory_order_acquire);
    return owner != nullptr ? owner : make_owner(device);
}

Owner* current_owner() {
    int device = -1;
    if (real::hipGetDevice(&device) != hipSuccess) return nullptr;
    use_device(device);
    return owner_of(device);
}

void use_device(int device) {
    uint32_t bit = device::device_bit(device);
    if ((state.used.load(std::memory_order_relaxed) & bit) == 0) state.used.fetch_or(bit, std::memory_order_relaxed);
}

// The unit is the pitch of a one-byte row; all devices of a process are taken to be alike.
size_t pitch_of(size_t width) {
    static std::atomic<size_t> unit{0};
    size_t known = unit.load(std::memory_order_relaxed);
    if (known == 0) unit.store(known = learn_pitch_unit(), std::memory_order_relaxed);
    if (known == 0 || width > SIZE_MAX - known) return 0;
    return device::round_up(width, known);
}

// The runtime starts by itself, at any call; without a device there is nothing to serve.
void arrive() {
    KeepErrno keep;
    LastError error;
    arrived = true;
    int count = 0;
    if (real::hipGetDeviceCount(&count) == hipSuccess && count > 0) {
        current_owner();
        start_agent(&vendor_ops());
    }
    error.after(hipSuccess);
}

LastError::LastError() : clean_(real::hipPeekAtLastError() == hipSuccess) {}

hipError_t LastError::after(hipError_t result) {
    if (result == hipSuccess && clean_ && real::hipPeekAtLastError() != hipSuccess) real::hipGetLastError();
    return result;
}

hipError_t on_hipDeviceReset() {
    int device = -1;
    real::hipGetDevice(&device);
    hipError_t result = real::hipDeviceReset();
    if (result == hipSuccess) bury(device);
    return result;
}

hipError_t on_hipDeviceEnablePeerAccess(int peerDeviceId, unsigned int flags) {
    return peers_changed(real::hipDeviceEnablePeerAccess(peerDeviceId, flags), peerDeviceId, device::add_peer);
}

hipError_t on_hipDeviceDisablePeerAccess(int peerDeviceId) {
    return peers_changed(real::hipDeviceDisablePeerAccess(peerDeviceId), peerDeviceId, device::remove_peer);
}

}  // namespace hip
}  // namespace gcr
