// SPDX-License-Identifier: Apache-2.0
#include "device/release.h"

#include <sys/mman.h>

#include "core/sys.h"
#include "device/devices.h"
#include "device/reservations.h"

namespace gcr {
namespace device {
namespace {

constexpr uint64_t kProbe = 64ull << 20;  // bytes: more than others are likely to take or give meanwhile
constexpr uint32_t kSettleMs = 100;  // the device's count may follow a little later

struct Trial {
    const DeviceOps& ops;
    uint64_t size;
    uint64_t address;
    uint64_t limit;  // bytes in use: less, and the memory is gone
};

bool gone(const Trial& trial) {
    return trial.ops.used() < trial.limit;
}

// Seen once is enough: other processes of the job may try the same, and have as much the next time.
bool gone_soon(const Trial& trial) {
    Deadline deadline(kSettleMs);
    while (!gone(trial)) {
        if (deadline.passed()) return false;
        sleep_us(2000);
    }
    return true;
}

// Unmapped and released, its address kept.
bool use_and_release(const Trial& trial, int device) {
    const DeviceOps& ops = trial.ops;
    uint64_t memory = 0;
    if (ops.create(trial.size, ops.plain(device), 0, false, &memory) != kSuccess) return false;
    bool mapped = ops.map(trial.address, trial.size, 0, memory) == kSuccess;
    if (mapped) ops.set_access(trial.address, trial.size, device_bit(device), device_bit(device));
    bool unmapped = mapped && ops.unmap(trial.address, trial.size) == kSuccess;
    ops.release(memory);
    return unmapped;
}

// The reservation stays the runtime's; only what lies there in this process's address space is replaced. In a file each
// address has its own place: what lies side by side is one mapping.
void map_over(uint64_t address, uint64_t size, int file = kNoFile) {
    int kind = file == kNoFile ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
    off_t at = file == kNoFile ? 0 : static_cast<off_t>(address);
    void* there = mmap(reinterpret_cast<void*>(address), size, PROT_NONE, kind | MAP_NORESERVE | MAP_FIXED, file, at);
    if (there == MAP_FAILED && file != kNoFile) map_over(address, size);  // what lay there may be gone
}

// From the least to the most. An address that does not come back is no way.
Release first_that_helps(Trial* trial) {
    if (gone(*trial)) return Release::kPlain;
    map_over(trial->address, trial->size);
    if (gone_soon(*trial)) return Release::kMapOver;
    uint64_t before = trial->address;
    if (trial->ops.give_back(before, trial->size) != kSuccess) return Release::kKept;
    if (trial->ops.reserve(trial->size, before, &trial->address) != kSuccess) trial->address = 0;
    return trial->address == before && gone_soon(*trial) ? Release::kReserveAgain : Release::kKept;
}

Release probe(State& state, int device) {
    const DeviceOps& ops = *state.ops;
    uint64_t granularity = facts_of(state, device).granularity;
    Trial trial{ops, round_up(kProbe, granularity == 0 ? 1 : granularity), 0, 0};
    if (ops.reserve(trial.size, 0, &trial.address) != kSuccess) return Release::kUnprobed;
    trial.limit = ops.used() + trial.size / 2;
    Release found = use_and_release(trial, device) ? first_that_helps(&trial) : Release::kUnprobed;
    if (trial.address != 0) ops.give_back(trial.address, trial.size);
    return found;
}

}  // namespace

void learn_release(State& state) {
    if (state.ops->used == nullptr || state.release.load(std::memory_order_relaxed) != Release::kUnprobed) return;
    const Handle* any = state.handles.first();
    if (any == nullptr) return;
    Current current(state, any->device);
    state.release.store(probe(state, any->device), std::memory_order_relaxed);
}

void map_over_if_needed(const State& state, const Handle& handle) {
    Release way = state.release.load(std::memory_order_relaxed);
    if (state.ops->used == nullptr || (way != Release::kMapOver && way != Release::kUnprobed)) return;
    for (const Mapping* mapping = handle.mappings; mapping != nullptr; mapping = mapping->sibling)
        map_over(mapping->key, mapping->size);
}

void cover_addresses(State& state, int file) {
    Guard guard(state.lock);
    for (Handle* handle = state.handles.first(); handle != nullptr; handle = state.handles.after(handle)) {
        if (!handle->released || handle->imported) continue;
        for (Mapping* mapping = handle->mappings; mapping != nullptr; mapping = mapping->sibling)
            if (!is_lost(state, *mapping)) map_over(mapping->key, mapping->size, file);
    }
}

}  // namespace device
}  // namespace gcr
