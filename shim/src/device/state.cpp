// SPDX-License-Identifier: Apache-2.0
#include "device/state.h"

namespace gcr {
namespace device {

Handle* find_handle(const State& state, uint64_t id) {
    Handle* handle = state.handles.find(id);
    return handle == nullptr || handle->internal || handle->dying || handle->retains == 0 ? nullptr : handle;
}

Mapping* mapping_at(const State& state, uint64_t address) {
    Mapping* mapping = state.mappings.at_most(address);
    return mapping != nullptr && address - mapping->key < mapping->size ? mapping : nullptr;
}

Allocation* allocation_at(const State& state, uint64_t address) {
    Allocation* allocation = state.allocations.at_most(address);
    return allocation != nullptr && address - allocation->key < allocation->size ? allocation : nullptr;
}

void link_mapping(State& state, Mapping* mapping) {
    state.mappings.insert(mapping);
    mapping->sibling = mapping->handle->mappings;
    mapping->handle->mappings = mapping;
}

void unlink_mapping(State& state, Mapping* mapping) {
    state.mappings.erase(mapping);
    for (Mapping** place = &mapping->handle->mappings; *place != nullptr; place = &(*place)->sibling) {
        if (*place != mapping) continue;
        *place = mapping->sibling;
        return;
    }
}

Handle* record_handle(State& state, uint64_t real, uint64_t size, const Properties& asked, Reason reason,
                      bool internal) {
    Handle* handle = make<Handle>();
    if (handle == nullptr) return nullptr;
    handle->key = ++state.last_id;
    handle->real = real;
    handle->size = size;
    handle->asked = asked;
    handle->device = state.ops->device_of(asked);
    handle->reason = reason;
    handle->retains = 1;
    handle->internal = internal;
    state.handles.insert(handle);
    if (reason != kCovered) add_uncovered(reason, size);
    return handle;
}

void uncover(Handle* handle, Reason reason) {
    if (handle->reason == reason) return;
    if (handle->reason != kCovered) drop_uncovered(handle->reason, handle->size);
    handle->reason = reason;
    add_uncovered(reason, handle->size);
}

void each_lock(State& state, void (Lock::*act)()) {
    (state.lock.*act)();
    (state.carried.lock().*act)();
    (state.pinned.lock().*act)();
    (state.captures.lock().*act)();
}

void forget_all_after_fork(State& state) {
    state.lock.reset_after_fork();
    state.opening.reset_after_fork();
    state.exporting.reset_after_fork();
    state.settling.reset_after_fork();
    state.handles.forget_all();
    state.mappings.forget_all();
    state.allocations.forget_all();
    state.peers.clear();
    state.put_off.clear();
    state.streams.forget_all();
    state.pools.forget_all();
    state.destroyed_pools = nullptr;
    state.segments_leaving.store(0, std::memory_order_relaxed);
    state.captures.forget_all_after_fork();
    state.reservations.forget_all();
    state.any_lost.store(false, std::memory_order_relaxed);
    state.carried.forget_all_after_fork();
    state.pinned.forget_all_after_fork();
}

}  // namespace device
}  // namespace gcr
