// SPDX-License-Identifier: Apache-2.0
//
// A handle lives while the program holds a reference or a mapping; so do the driver's and ours.
#include "device/mappings.h"

#include "device/devices.h"
#include "device/physical.h"

namespace gcr {
namespace device {
namespace {

// Under state.lock. `visit`: every mapping that begins in the range.
template <typename Visit>
void each_mapping(State& state, uint64_t address, uint64_t size, Visit visit) {
    for (Mapping* mapping = state.mappings.at_least(address); mapping != nullptr && mapping->key < address + size;) {
        Mapping* next = state.mappings.after(mapping);
        visit(mapping);
        mapping = next;
    }
}

// Under state.lock.
bool touches_internal_locked(const State& state, uint64_t address, uint64_t size) {
    Mapping* mapping = mapping_at(state, address);
    if (mapping == nullptr) mapping = state.mappings.at_least(address);
    for (; mapping != nullptr && mapping->key < address + size; mapping = state.mappings.after(mapping))
        if (mapping->owner != nullptr) return true;
    return false;
}

// Under state.lock: takes the mappings that lie wholly in the range out of the table, chained by `left`.
Mapping* take_mappings(State& state, uint64_t address, uint64_t size) {
    Mapping* chain = nullptr;
    each_mapping(state, address, size, [&](Mapping* mapping) {
        if (mapping->key + mapping->size > address + size) return;
        unlink_mapping(state, mapping);
        mapping->left = chain;
        chain = mapping;
    });
    return chain;
}

void put_back_mappings(State& state, Mapping* chain) {
    Guard guard(state.lock);
    while (chain != nullptr) {
        Mapping* next = chain->left;
        chain->left = chain->right = nullptr;
        link_mapping(state, chain);
        chain = next;
    }
}

void drop_mappings(State& state, Mapping* chain) {
    while (chain != nullptr) {
        Mapping* next = chain->left;
        Handle* handle = chain->handle;
        bool unused;
        {
            Guard guard(state.lock);
            handle->mapped--;
            unused = retire_if_unused(state, handle);
        }
        if (unused) destroy_physical(state, handle);
        free(chain);
        chain = next;
    }
}

}  // namespace

Result record_mapping(State& state, Handle* handle, uint64_t address, uint64_t size, uint64_t offset) {
    Mapping* mapping = make<Mapping>();
    if (mapping == nullptr) {
        state.ops->unmap(address, size);
        return state.ops->out_of_memory;
    }
    mapping->key = address;
    mapping->handle = handle;
    mapping->offset = offset;
    mapping->size = size;
    Guard guard(state.lock);
    handle->mapped++;
    link_mapping(state, mapping);
    return kSuccess;
}

Result unmap_range(State& state, uint64_t address, uint64_t size) {
    Mapping* chain;
    {
        Guard guard(state.lock);
        if (touches_internal_locked(state, address, size)) return state.ops->invalid_value;
        chain = take_mappings(state, address, size);  // before the driver's: the range may be mapped anew at once
    }
    Result result = state.ops->unmap(address, size);
    if (result == kSuccess)
        drop_mappings(state, chain);
    else
        put_back_mappings(state, chain);
    return result;
}

bool touches_internal(State& state, uint64_t address, uint64_t size) {
    Guard guard(state.lock);
    return touches_internal_locked(state, address, size);
}

void record_access(State& state, uint64_t address, uint64_t size, int device, bool may_read, bool may_write) {
    uint32_t bit = device_bit(device);
    Guard guard(state.lock);
    each_mapping(state, address, size, [&](Mapping* mapping) {
        mapping->read = may_read ? mapping->read | bit : mapping->read & ~bit;
        mapping->write = may_write ? mapping->write | bit : mapping->write & ~bit;
    });
}

void uncover_range(State& state, uint64_t address, uint64_t size, Reason reason) {
    Guard guard(state.lock);
    each_mapping(state, address, size, [&](Mapping* mapping) {
        if (mapping->handle->reason == kCovered) uncover(mapping->handle, reason);
    });
}

bool retain_at(State& state, uint64_t address, uint64_t* id) {
    Guard guard(state.lock);
    Mapping* mapping = mapping_at(state, address);
    if (mapping == nullptr) return false;
    if (id == nullptr) return true;
    *id = 0;
    if (mapping->owner != nullptr) return true;
    mapping->handle->retains++;
    *id = mapping->handle->key;
    return true;
}

}  // namespace device
}  // namespace gcr
