// SPDX-License-Identifier: Apache-2.0
#include "device/allocations.h"

#include "device/devices.h"
#include "device/pools.h"
#include "device/regions.h"
#include "device/slabs.h"

namespace gcr {
namespace device {
namespace {

Result allocate_region(State& state, Owner* owner, uint64_t size, const Properties& asked, uint64_t granularity,
                       Allocation* allocation) {
    if (size > UINT64_MAX - granularity) return state.ops->out_of_memory;
    Mapping* region = nullptr;
    Result result = make_region_of(state, owner, asked, round_up(size, granularity), false, &region);
    if (result != kSuccess) return result;
    Guard guard(state.lock);
    allocation->key = region->key;
    allocation->mapping = region;
    allocation->id = ++state.last_allocation;
    state.allocations.insert(allocation);
    return kSuccess;
}

Result allocate_large(State& state, Owner* owner, uint64_t size, Allocation* allocation) {
    uint64_t granularity = facts_of(state, owner->device).granularity;
    return allocate_region(state, owner, size, state.ops->plain(owner->device), granularity, allocation);
}

Result give_large(State& state, const Allocation& allocation) {
    {
        Guard guard(state.lock);
        forget_region(state, allocation.mapping);
    }
    return give_region(state, allocation.mapping);
}

Result give_memory(State& state, Allocation* allocation) {
    auto give = pool_of(*allocation->mapping) != nullptr ? give_to_pool
                : allocation->block != nullptr           ? give_to_slab
                                                         : give_large;
    Result result = give(state, *allocation);
    free(allocation);
    return result;
}

Allocation* next_put_off(State& state) {
    Guard guard(state.lock);
    state.any_put_off.store(state.put_off.size() > 1, std::memory_order_relaxed);
    return state.put_off.empty() ? nullptr : state.put_off.pop();
}

void drop_record(Allocation* allocation) {
    if (allocation->stream != nullptr) allocation->stream->held--;
    free(allocation);
}

Mapping* take_region_of(State& state, const Owner* owner) {
    Guard guard(state.lock);
    for (Mapping* region = state.mappings.first(); region != nullptr; region = state.mappings.after(region)) {
        if (region->owner != owner) continue;
        forget_region(state, region);
        return region;
    }
    return nullptr;
}

template <typename Allocate>
Result allocate_with(State& state, uint64_t size, uint64_t* address, Allocate allocate) {
    Allocation* allocation = make<Allocation>();
    if (allocation == nullptr) return state.ops->out_of_memory;
    allocation->size = size;
    Result result = allocate(allocation);
    if (result == kSuccess)
        *address = allocation->key;
    else
        free(allocation);
    return result;
}

}  // namespace

Result allocate(State& state, Owner* owner, uint64_t size, uint64_t* address) {
    return allocate_with(state, size, address, [&](Allocation* allocation) {
        return size <= kSmall ? allocate_small(state, owner, size, allocation)
                              : allocate_large(state, owner, size, allocation);
    });
}

Result allocate_as(State& state, Owner* owner, uint64_t size, const Properties& asked, uint64_t granularity,
                   uint64_t* address) {
    return allocate_with(state, size, address, [&](Allocation* allocation) {
        return allocate_region(state, owner, size, asked, granularity, allocation);
    });
}

// What another process lent is closed, not freed.
Allocation* take_allocation(State& state, uint64_t address) {
    Guard guard(state.lock);
    Allocation* allocation = state.allocations.find(address);
    if (allocation == nullptr || allocation->origin.process != 0) return nullptr;
    state.allocations.erase(allocation);
    return allocation;
}

void take_back(State& state, Allocation* allocation) {
    Guard guard(state.lock);
    state.allocations.insert(allocation);
}

Result free_when_idle(State& state, Allocation* allocation) {
    Result waited = state.ops->synchronize(allocation->mapping->owner);
    if (waited == kSuccess) return give_memory(state, allocation);
    take_back(state, allocation);
    return waited;
}

void put_off(State& state, Allocation* allocation) {
    Guard guard(state.lock);
    state.put_off.push(allocation);  // no host memory: the memory stays allocated until its owner goes
    state.any_put_off.store(true, std::memory_order_relaxed);  // only a hint: the list is looked at under the lock
}

bool give_back_put_off(State& state) {
    if (state.ops->captures() > 0) return false;
    bool any = false;
    while (Allocation* allocation = next_put_off(state)) {
        any = true;
        state.ops->synchronize(allocation->mapping->owner);
        give_memory(state, allocation);
    }
    return any;
}

bool give_back_spares(State& state) {
    bool frees = give_back_put_off(state), pools = trim_all(state);
    return give_back_empty_slabs(state) || frees || pools;
}

void drop_allocation_records(State& state, const Owner* owner) {
    for (Allocation* allocation = state.allocations.first(); allocation != nullptr;) {
        Allocation* next = state.allocations.after(allocation);
        if (allocation->mapping->owner == owner) {
            state.allocations.erase(allocation);
            drop_record(allocation);
        }
        allocation = next;
    }
    for (size_t i = state.put_off.size(); i-- > 0;) {
        if (state.put_off[i]->mapping->owner != owner) continue;
        drop_record(state.put_off[i]);
        state.put_off.swap_out(i);
    }
}

void free_all_of(State& state, Owner* owner) {
    {
        Guard guard(state.lock);
        drop_allocation_records(state, owner);
        owner->slabs.dispose();  // an owner that is a device goes on: it must not be served from what is gone
        owner->slab_bytes = owner->empty_slabs = 0;
    }
    while (Mapping* region = take_region_of(state, owner)) give_region(state, region);
}

}  // namespace device
}  // namespace gcr
