// SPDX-License-Identifier: Apache-2.0
#include "device/lent.h"

#include <fcntl.h>
#include <unistd.h>

#include "core/agent.h"
#include "core/gate.h"
#include "device/devices.h"
#include "device/pools.h"
#include "device/regions.h"

namespace gcr {
namespace device {
namespace {

// ---- ours -------------------------------------------------------------------------------------------------------------

bool can_be_lent(const State& state, const Handle& handle) {
    return (handle.reason == kCovered || handle.reason == wire::kReasonIpcExport) && exports(state, handle.device);
}

// Under state.lock. Null: freed since, and whatever is there now is not what the blob names.
Allocation* named_by(const State& state, const Blob& blob) {
    Allocation* allocation = state.allocations.find(blob.address);
    return allocation != nullptr && allocation->id == blob.allocation ? allocation : nullptr;
}

Lent describe(const State& state, const Allocation& allocation) {
    const Handle& handle = *allocation.mapping->handle;
    Lent lent{handle.key, handle.size, allocation.key - allocation.mapping->key, allocation.size, {}};
    memcpy(lent.uuid, state.devices[handle.device].uuid, sizeof lent.uuid);
    return lent;
}

int export_lent(const State& state, const Handle& handle) {
    int descriptor = -1;
    Current current(state, handle.device);
    if (state.ops->export_fd(handle.real, &descriptor) != kSuccess) return -1;
    fcntl(descriptor, F_SETFD, FD_CLOEXEC);
    return descriptor;
}

// ---- another process's ------------------------------------------------------------------------------------------------

int device_with(State& state, const uint8_t uuid[16]) {
    learn_devices(state);
    int count = static_cast<int>(state.device_count.load(std::memory_order_acquire));
    Guard guard(state.lock);
    for (int device = 0; device < count; device++)
        if (memcmp(state.devices[device].uuid, uuid, 16) == 0) return device;
    return -1;
}

bool open_once_more(State& state, const Owner* owner, const Origin& origin, uint64_t* address) {
    Guard guard(state.lock);
    Allocation* allocation = state.allocations.first();
    while (allocation != nullptr && !(allocation->origin == origin && allocation->mapping->owner == owner))
        allocation = state.allocations.after(allocation);
    if (allocation == nullptr) return false;
    allocation->opens++;
    *address = allocation->key;
    return true;
}

Mapping* region_of(State& state, const Owner* owner, const Origin& origin) {
    Guard guard(state.lock);
    Mapping* region = state.mappings.first();
    while (region != nullptr && !(region->origin == origin && region->owner == owner))
        region = state.mappings.after(region);
    return region;
}

Result map_lent(State& state, Owner* owner, const Lent& lent, int descriptor, Mapping** region) {
    int device = device_with(state, lent.uuid);
    if (device < 0) return state.ops->invalid_value;
    uint64_t real = 0;
    Result result = state.ops->import_fd(descriptor, &real);
    if (result != kSuccess) return result;
    result = make_region_over(state, owner, real, state.ops->plain(device), lent.handle_size, wire::kReasonIpcImport,
                              false, region);
    if (result != kSuccess) state.ops->release(real);
    return result;
}

Result open_lent(State& state, Owner* owner, const Origin& origin, const Lent& lent, int descriptor,
                 uint64_t* address) {
    if (lent.size > lent.handle_size || lent.offset > lent.handle_size - lent.size) return state.ops->invalid_value;
    Allocation* allocation = make<Allocation>();
    if (allocation == nullptr) return state.ops->out_of_memory;
    Origin memory{origin.process, lent.handle};
    Mapping* region = region_of(state, owner, memory);
    Result result = region != nullptr ? kSuccess : map_lent(state, owner, lent, descriptor, &region);
    if (result != kSuccess) {
        free(allocation);
        return result;
    }
    Guard guard(state.lock);
    region->origin = memory;
    region->opened++;
    allocation->key = *address = region->key + lent.offset;
    allocation->size = lent.size;
    allocation->mapping = region;
    allocation->id = ++state.last_allocation;
    allocation->origin = origin;
    allocation->opens = 1;
    state.allocations.insert(allocation);
    return kSuccess;
}

Result close_last(State& state, Allocation* allocation) {
    Mapping* region = allocation->mapping;
    Result result = state.ops->synchronize(region->owner);
    if (result != kSuccess) return result;
    bool unused;
    {
        Guard guard(state.lock);
        state.allocations.erase(allocation);
        unused = --region->opened == 0;
        if (unused) forget_region(state, region);
    }
    free(allocation);
    return unused ? give_region(state, region) : kSuccess;
}

}  // namespace

bool offer(State& state, uint64_t address, Blob* blob) {
    learn_devices(state);  // the process that opens it looks for the device by its uuid
    if (!begin_blob(blob, state.ops->vendor)) return false;
    Guard guard(state.lock);
    Allocation* allocation = allocation_at(state, address);
    if (allocation == nullptr || pool_of(*allocation->mapping) != nullptr) return false;  // bare: not to be had so
    if (!can_be_lent(state, *allocation->mapping->handle)) return false;
    if (!allocation->lent) begin_loan(allocation->mapping->handle);
    allocation->lent = true;
    blob->address = allocation->key;
    blob->allocation = allocation->id;
    return true;
}

// What came back by import is asked for outside the gate: its descriptor is with the daemon, and no driver is called.
bool lend(State& state, const Blob& blob, Lent* lent, int* descriptor) {
    {
        GateEntry in_flight;
        Guard exporting(state.exporting);
        const Handle* handle;
        {
            Guard guard(state.lock);
            const Allocation* allocation = named_by(state, blob);
            if (allocation == nullptr || !allocation->mapping->handle->lent) return false;
            handle = allocation->mapping->handle;
            *lent = describe(state, *allocation);
        }
        if (!handle->kept) {
            *descriptor = export_lent(state, *handle);
            return *descriptor >= 0;
        }
    }
    *descriptor = ask_for_descriptor(lent->handle);
    return *descriptor >= 0;
}

Result open(State& state, Owner* owner, const Blob& blob, uint64_t* address) {
    Guard opening(state.opening);
    Origin origin{blob.process, blob.allocation};
    if (open_once_more(state, owner, origin, address)) return kSuccess;
    Lent lent;
    int descriptor = -1;
    if (!borrow(blob, &lent, &descriptor)) return state.ops->invalid_value;
    Result result = open_lent(state, owner, origin, lent, descriptor, address);
    close_descriptor(descriptor);
    return result;
}

bool close(State& state, uint64_t address, Result* result) {
    Guard opening(state.opening);
    Allocation* allocation;
    {
        Guard guard(state.lock);
        allocation = state.allocations.find(address);
        if (allocation == nullptr || allocation->origin.process == 0) return false;
        *result = kSuccess;
        if (allocation->opens > 1) {
            allocation->opens--;
            return true;
        }
    }
    *result = close_last(state, allocation);
    return true;
}

}  // namespace device
}  // namespace gcr
