// SPDX-License-Identifier: Apache-2.0
#include "device/devices.h"

namespace gcr {
namespace device {
namespace {

enum Known : uint32_t { kUnknown, kBeingWritten, kKnown };

bool seen_first(const State& state, const uint8_t uuid[16]) {
    for (const State::Device& device : state.devices)
        if (memcmp(device.first_uuid, uuid, sizeof device.first_uuid) == 0) return true;
    return false;
}

}  // namespace

// Two threads may ask at once; both get, and store, the same answer.
Facts facts_of(State& state, int device) {
    if (device < 0 || device >= kMaxDevices) return {};
    State::Device& entry = state.devices[device];
    if (entry.known.load(std::memory_order_acquire) == kKnown) return entry.facts;
    Facts facts = state.ops->facts(device);
    uint32_t unknown = kUnknown;
    if (entry.known.compare_exchange_strong(unknown, kBeingWritten)) {
        entry.facts = facts;
        entry.known.store(kKnown, std::memory_order_release);  // pairs with the acquire above
    }
    return facts;
}

bool exports(const State& state, int device) {
    if (device < 0 || device >= kMaxDevices) return true;
    const State::Device& entry = state.devices[device];
    if (entry.hidden.load(std::memory_order_relaxed)) return false;
    return entry.known.load(std::memory_order_acquire) != kKnown || !(entry.facts.shareable && entry.facts.copied_only);
}

bool all_export(const State& state) {
    bool all = true;
    for (int device = 0; device < kMaxDevices; device++) all = all && exports(state, device);
    return all;
}

// A helper thread and the agent's may learn at once: both write the same bytes, under the lock.
void learn_devices(State& state) {
    if (state.device_count.load(std::memory_order_acquire) > 0) return;
    uint32_t count = state.ops->count();
    if (count > kMaxDevices) count = kMaxDevices;
    for (uint32_t i = 0; i < count; i++) {
        facts_of(state, static_cast<int>(i));
        uint8_t uuid[16];
        if (!state.ops->uuid(static_cast<int>(i), uuid)) continue;
        Guard guard(state.lock);
        memcpy(state.devices[i].uuid, uuid, sizeof uuid);
        memcpy(state.devices[i].first_uuid, uuid, sizeof uuid);
    }
    state.device_count.store(count, std::memory_order_release);  // pairs with the acquire above, and add_status()'s
}

bool uuid_of(State& state, int device, uint8_t uuid[16]) {
    uint32_t known = state.device_count.load(std::memory_order_acquire);
    if (device < 0 || static_cast<uint32_t>(device) >= known) return false;
    Guard guard(state.lock);
    memcpy(uuid, state.devices[device].uuid, sizeof state.devices[device].uuid);
    return true;
}

void move_device(State& state, const uint8_t old_uuid[16], const uint8_t new_uuid[16]) {
    Guard guard(state.lock);
    for (State::Device& device : state.devices) {
        if (memcmp(device.uuid, old_uuid, sizeof device.uuid) != 0) continue;
        memcpy(device.becomes, new_uuid, sizeof device.becomes);
        device.moved = true;
    }
}

void settle_moves(State& state, bool keep) {
    Guard guard(state.lock);
    for (State::Device& device : state.devices) {
        if (device.moved && keep) memcpy(device.uuid, device.becomes, sizeof device.uuid);
        device.moved = false;
        device.hidden.store(!seen_first(state, device.uuid), std::memory_order_relaxed);
    }
}

}  // namespace device
}  // namespace gcr
