// SPDX-License-Identifier: Apache-2.0
#include "device/lent.h"

#include "device/devices.h"
#include "device/loans.h"
#include "device/pools.h"
#include "device/regions.h"

namespace gcr {
namespace device {
namespace {

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

Mapping* region_of(State& state, const Owner* owner, const Blob& memory) {
    Guard guard(state.lock);
    Mapping* region = state.mappings.first();
    while (region != nullptr && !(region->owner == owner && is_memory_of(memory, *region->handle)))
        region = state.mappings.after(region);
    return region;
}

Result map_lent(State& state, Owner* owner, const Lent& lent, const Blob& memory, int descriptor, Mapping** region) {
    int device = device_with(state, lent.uuid);
    if (device < 0) return state.ops->invalid_value;
    Blob* foreign = make<Blob>();
    if (foreign == nullptr) return state.ops->out_of_memory;
    *foreign = memory;
    uint64_t real = 0;
    Result result = state.ops->import_fd(descriptor, &real);
    if (result == kSuccess) {
        Content content{real, state.ops->plain(device), kCovered, foreign};
        result = make_region_over(state, owner, content, lent.handle_size, false, region);
        if (result == kSuccess) return kSuccess;
        state.ops->release(real);
    }
    free(foreign);
    return result;
}

// One loan a region, which it returns when it goes: one that served to learn where the allocation lies is over.
Result open_lent(State& state, Owner* owner, const Origin& origin, const Lent& lent, const Blob& memory, int descriptor,
                 uint64_t* address) {
    if (lent.size > lent.handle_size || lent.offset > lent.handle_size - lent.size) return state.ops->invalid_value;
    Allocation* allocation = make<Allocation>();
    if (allocation == nullptr) return state.ops->out_of_memory;
    Mapping* region = region_of(state, owner, memory);
    bool again = region != nullptr;
    Result result = again ? kSuccess : map_lent(state, owner, lent, memory, descriptor, &region);
    if (result != kSuccess) {
        free(allocation);
        return result;
    }
    if (again) return_loan(memory);
    Guard guard(state.lock);
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
    Handle* handle = allocation->mapping->handle;
    if (!coverable(*handle) || !exports(state, handle->device)) return false;
    handle->lent = true;
    blob->address = allocation->key;
    blob->id = allocation->id;
    return true;
}

Result open(State& state, Owner* owner, const Blob& blob, uint64_t* address) {
    Guard opening(state.opening);
    Origin origin{blob.process, blob.id};
    if (open_once_more(state, owner, origin, address)) return kSuccess;
    Lent lent;
    int descriptor = -1;
    if (!borrow(blob, &lent, &descriptor)) return state.ops->invalid_value;
    Blob memory = blob_of(blob, lent.handle);
    Result result = open_lent(state, owner, origin, lent, memory, descriptor, address);
    close_descriptor(descriptor);
    if (result != kSuccess) return_loan(memory);
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
