// SPDX-License-Identifier: Apache-2.0
#include "cuda/vendor.h"

#include <string.h>

#include <initializer_list>

#include "cuda/captures.h"
#include "cuda/carried.h"
#include "cuda/driver.h"
#include "cuda/handover.h"
#include "cuda/host.h"
#include "cuda/streams.h"

namespace gcr {
namespace cuda {
namespace {

// Learnt by enter_thread(): the driver may not be asked while the agent is frozen.
std::atomic<uint32_t> known_devices{0};
std::atomic<bool> known_simulated{false};

void learn_devices() {
    uint32_t count = device_count();
    uint8_t uuid[16];
    char name[64] = {};
    for (uint32_t i = 0; i < count; i++) device_uuid(static_cast<CUdevice>(i), uuid);
    if (count > 0 && real::cuDeviceGetName(name, sizeof name - 1, 0) == CUDA_SUCCESS)
        known_simulated.store(strstr(name, "imulated") != nullptr || strstr(name, "SIMULATED") != nullptr);
    known_devices.store(count);
}

// Our threads must neither disturb a capture of the program nor be refused because of one.
void enter_thread() {
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    real::cuThreadExchangeStreamCaptureMode(&mode);
    if (known_devices.load() == 0) learn_devices();
}

bool simulated() {
    return known_simulated.load();
}

void count_handle(const Handle& handle, wire::StatusRecord* status, wire::DeviceRecord* devices, uint32_t count) {
    if (!handle.internal) status->allocations++;
    if (!coverable(handle)) return;
    status->handles++;
    status->covered_bytes += handle.size;
    uint32_t device = static_cast<uint32_t>(handle.asked.location.id);
    if (device >= count) return;
    devices[device].handles++;
    devices[device].covered_bytes += handle.size;
}

void fill_status(wire::StatusRecord* status, Array<wire::DeviceRecord>* devices) {
    for (uint32_t i = 0; i < known_devices.load(); i++) {
        wire::DeviceRecord record{};
        device_uuid(static_cast<CUdevice>(i), record.uuid);
        record.ordinal = i;
        devices->push(record);
    }
    Guard guard(state.lock);
    for (Handle* handle = state.handles.first(); handle != nullptr; handle = state.handles.after(handle))
        count_handle(*handle, status, devices->data(), static_cast<uint32_t>(devices->size()));
    status->allocations += state.allocations.size();
    status->contexts = static_cast<uint32_t>(state.contexts.size());
    status->pinned_host_bytes = pinned_bytes();
}

// In the order in which they nest; nobody holds two but as state.lock, then another.
void each_lock(void (Lock::*act)()) {
    for (Lock* lock : {&state.lock, &carried_lock(), &capture_lock(), &pinned_lock()}) (lock->*act)();
}

void lock_for_fork() {
    each_lock(&Lock::acquire);
}
void unlock_after_fork() {
    each_lock(&Lock::release);
}

void forget_state() {
    state.lock.reset_after_fork();
    state.handles.forget_all();
    state.mappings.forget_all();
    state.allocations.forget_all();
    state.streams.forget_all();
    state.contexts.clear();
    state.peers.clear();
    state.put_off.clear();
    state.exported = 0;
}

// What the tables named belongs to the parent. The nodes themselves are left: a few kilobytes, once.
void reset_after_fork() {
    forget_state();
    forget_carried_after_fork();
    forget_captures_after_fork();
    forget_pinned_after_fork();
}

const VendorOps kOps = {
    wire::kNvidia,     simulated,        enter_thread,         fill_status,   captures_in_progress,
    export_after,      mappings_after,   synchronize_contexts, stuck_streams, hand_over,
    import_handles,    map_imported,     discard_imported,     end_exports,   lock_for_fork,
    unlock_after_fork, reset_after_fork,
};

}  // namespace

const VendorOps& vendor_ops() {
    return kOps;
}

}  // namespace cuda
}  // namespace gcr
