// SPDX-License-Identifier: Apache-2.0
#include "device/copyout.h"

#include "device/aside.h"
#include "device/devices.h"

namespace gcr {
namespace device {
namespace {

const Handle* find_here(State& state, uint64_t id, uint64_t offset, uint64_t size) {
    Guard guard(state.lock);
    const Handle* handle = state.handles.find(id);
    if (handle == nullptr || !coverable(*handle) || (handle->released && !handle->imported)) return nullptr;
    return offset <= handle->size && size <= handle->size - offset ? handle : nullptr;
}

Failure copy_at(const State& state, Direction direction, uint64_t address, void* host, uint64_t size) {
    Result result = direction == Direction::kOut ? state.ops->copy_to_host(host, address, size)
                                                 : state.ops->copy_to_device(address, host, size);
    if (result != kSuccess) return {wire::kDriver, result, "a copy failed"};
    return {};
}

}  // namespace

Failure copy_piece(State& state, Direction direction, uint64_t id, uint64_t offset, void* host, uint64_t size) {
    const Handle* handle = find_here(state, id, offset, size);
    if (handle == nullptr) return {wire::kUnknownHandle, 0, "no such piece of memory is here"};
    Current current(state, handle->device);
    if (is_read_in_place(state, *handle)) return copy_at(state, direction, handle->mappings->key + offset, host, size);
    Aside aside(*state.ops, *handle, handle->real);
    if (aside.result() != kSuccess) return {wire::kDriver, aside.result(), "memory could not be mapped to be copied"};
    return copy_at(state, direction, aside.address() + offset, host, size);
}

}  // namespace device
}  // namespace gcr
