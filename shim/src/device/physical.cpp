// SPDX-License-Identifier: Apache-2.0
#include "device/physical.h"

#include "core/agent.h"
#include "device/allocations.h"
#include "device/devices.h"

namespace gcr {
namespace device {

namespace {

// What gcr itself took of the device for a moment: no program is refused because of it.
bool room_is_given_back(State& state, const Properties& asked) {
    uint8_t uuid[16];
    return uuid_of(state, state.ops->device_of(asked), uuid) && ask_to_let_go(uuid);
}

}  // namespace

Result create_once(State& state, uint64_t size, const Properties& asked, uint64_t flags, Physical* made) {
    const DeviceOps& ops = *state.ops;
    bool export_too = !facts_of(state, ops.device_of(asked)).copied_only;
    made->exportable = true;
    Result result = ops.create(size, asked, flags, export_too, &made->real);
    if (result == kSuccess || result == ops.out_of_memory || !export_too) return result;
    made->exportable = ops.exportable(asked);
    return ops.create(size, asked, flags, false, &made->real);
}

Result create_physical(State& state, uint64_t size, const Properties& asked, uint64_t flags, Physical* made) {
    const Result full = state.ops->out_of_memory;
    Result result = create_once(state, size, asked, flags, made);
    if (result == full && give_back_spares(state)) result = create_once(state, size, asked, flags, made);
    if (result == full && room_is_given_back(state, asked)) result = create_once(state, size, asked, flags, made);
    return result;
}

Result destroy_physical(State& state, Handle* handle) {
    bool ours = handle->foreign == nullptr;
    if (ours && (handle->exported || handle->kept)) tell_released(handle->key);
    if (handle->lent) Guard exporting(state.exporting);  // not while a descriptor of it is made
    Result result = handle->released ? kSuccess : state.ops->release(handle->real);
    if (!ours) return_loan(*handle->foreign);
    free(const_cast<Blob*>(handle->foreign));
    free(handle);
    return result;
}

bool retire_if_unused(State& state, Handle* handle) {
    if (handle->retains > 0 || handle->mapped > 0 || handle->loans != nullptr) return false;
    handle->dying = true;
    state.handles.erase(handle);
    if (handle->reason != kCovered) drop_uncovered(handle->reason, handle->size);
    return true;
}

}  // namespace device
}  // namespace gcr
