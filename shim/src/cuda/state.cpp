// SPDX-License-Identifier: Apache-2.0
#include "cuda/state.h"

#include <new>

namespace gcr {
namespace cuda {

State state;

Handle* find_handle(uint64_t id) {
    Handle* handle = state.handles.find(id);
    return handle == nullptr || handle->internal || handle->dying || handle->retains == 0 ? nullptr : handle;
}

Mapping* mapping_at(CUdeviceptr address) {
    Mapping* mapping = state.mappings.at_most(address);
    return mapping != nullptr && address - mapping->key < mapping->size ? mapping : nullptr;
}

Allocation* allocation_at(CUdeviceptr address) {
    Allocation* allocation = state.allocations.at_most(address);
    return allocation != nullptr && address - allocation->key < allocation->size ? allocation : nullptr;
}

void link_mapping(Mapping* mapping) {
    state.mappings.insert(mapping);
    mapping->sibling = mapping->handle->mappings;
    mapping->handle->mappings = mapping;
}

void unlink_mapping(Mapping* mapping) {
    state.mappings.erase(mapping);
    for (Mapping** place = &mapping->handle->mappings; *place != nullptr; place = &(*place)->sibling) {
        if (*place != mapping) continue;
        *place = mapping->sibling;
        return;
    }
}

Handle* record_handle(CUmemGenericAllocationHandle real, uint64_t size, const CUmemAllocationProp& asked, Reason reason,
                      bool internal) {
    Handle* handle = make<Handle>();
    if (handle == nullptr) return nullptr;
    handle->key = ++state.last_id;
    handle->real = real;
    handle->size = size;
    handle->asked = asked;
    handle->reason = reason;
    handle->retains = 1;
    handle->internal = internal;
    state.handles.insert(handle);
    if (reason != kCovered) add_uncovered(reason, size);
    return handle;
}

bool coverable(const Handle& handle) {
    return handle.reason == kCovered && !handle.dying;
}

}  // namespace cuda
}  // namespace gcr
