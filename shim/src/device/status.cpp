// SPDX-License-Identifier: Apache-2.0
#include "device/status.h"

namespace gcr {
namespace device {
namespace {

// `devices`: of this state, by ordinal; fewer than the handle's where no host memory was left for them.
void count_handle(const Handle& handle, wire::StatusRecord* status, wire::DeviceRecord* devices, size_t count) {
    if (!handle.internal) status->allocations++;
    if (!coverable(handle)) return;
    status->handles++;
    status->covered_bytes += handle.size;
    size_t device = static_cast<size_t>(handle.device);
    if (device >= count) return;
    devices[device].handles++;
    devices[device].covered_bytes += handle.size;
}

}  // namespace

void add_status(State& state, wire::StatusRecord* status, Array<wire::DeviceRecord>* devices) {
    size_t before = devices->size();
    uint32_t known = is_placed(state) ? state.device_count.load(std::memory_order_acquire) : 0;
    for (uint32_t i = 0; i < known; i++) {
        wire::DeviceRecord record{};
        memcpy(record.uuid, state.devices[i].uuid, sizeof record.uuid);
        record.ordinal = state.first_ordinal.load(std::memory_order_relaxed) + i;
        devices->push(record);
    }
    Guard guard(state.lock);
    for (Handle* handle = state.handles.first(); handle != nullptr; handle = state.handles.after(handle))
        count_handle(*handle, status, devices->data() + before, devices->size() - before);
    status->allocations += state.allocations.size();
    status->pinned_host_bytes += state.pinned.total_bytes();
}

}  // namespace device
}  // namespace gcr
