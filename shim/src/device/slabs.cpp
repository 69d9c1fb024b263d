// SPDX-License-Identifier: Apache-2.0
#include "device/slabs.h"

#include "device/devices.h"
#include "device/regions.h"

namespace gcr {
namespace device {
namespace {

constexpr uint64_t kLargestSlab = 32ull << 20;
constexpr uint64_t kSlabShare = 32;  // a slab is at most this part of its owner's slabs: ≤ 3 % unused

uint64_t slab_size(const Owner* owner, uint64_t granularity) {
    uint64_t wanted = owner->slab_bytes / kSlabShare;
    if (wanted > kLargestSlab) wanted = kLargestSlab;
    uint64_t least = kSmall > granularity ? kSmall : granularity;
    return round_up(wanted < least ? least : wanted, granularity);
}

bool take_from_slabs(State& state, Owner* owner, uint64_t size, Allocation* allocation) {
    Guard guard(state.lock);
    Block* block = owner->slabs.take(static_cast<uint32_t>(round_up(size, kSlabUnit) / kSlabUnit));
    if (block == nullptr) return false;
    if (block->range->used == block->size) owner->empty_slabs--;
    Mapping* slab = static_cast<Mapping*>(block->range->owner);
    allocation->key = slab->key + block->start * kSlabUnit;
    allocation->mapping = slab;
    allocation->block = block;
    allocation->id = ++state.last_allocation;
    state.allocations.insert(allocation);
    return true;
}

Result add_slab(State& state, Owner* owner) {
    Mapping* slab = nullptr;
    uint64_t granularity = facts_of(state, owner->device).granularity;
    Result result = make_region(state, owner, slab_size(owner, granularity), true, &slab);
    if (result != kSuccess) return result;
    {
        Guard guard(state.lock);
        if (owner->slabs.add(&slab->range, static_cast<uint32_t>(slab->size / kSlabUnit))) {
            owner->slab_bytes += slab->size;
            owner->empty_slabs++;
            return kSuccess;
        }
        forget_region(state, slab);
    }
    give_region(state, slab);
    return state.ops->out_of_memory;
}

// Under state.lock: takes an empty slab out of use.
void forget_slab(State& state, Mapping* slab) {
    Owner* owner = slab->owner;
    owner->slabs.remove(&slab->range);
    owner->slab_bytes -= slab->size;
    owner->empty_slabs--;
    forget_region(state, slab);
}

Mapping* take_one_empty_slab(State& state) {
    Guard guard(state.lock);
    for (Mapping* slab = state.mappings.first(); slab != nullptr; slab = state.mappings.after(slab)) {
        if (!slab->slab || slab->range.first == nullptr || !slab->range.empty()) continue;
        forget_slab(state, slab);
        return slab;
    }
    return nullptr;
}

}  // namespace

// Another thread may take what this one added: a few rounds, then the driver's own allocator serves.
Result allocate_small(State& state, Owner* owner, uint64_t size, Allocation* allocation) {
    for (int attempt = 0; attempt < 16; attempt++) {
        if (take_from_slabs(state, owner, size, allocation)) return kSuccess;
        Result result = add_slab(state, owner);
        if (result != kSuccess) return result;
    }
    return state.ops->out_of_memory;
}

// One empty slab is kept, for a program that frees and allocates in turn.
Result give_to_slab(State& state, const Allocation& allocation) {
    Mapping* slab = allocation.mapping;
    {
        Guard guard(state.lock);
        Owner* owner = slab->owner;
        owner->slabs.give(allocation.block);
        if (!slab->range.empty()) return kSuccess;
        owner->empty_slabs++;
        if (owner->empty_slabs <= 1) return kSuccess;
        forget_slab(state, slab);
    }
    return give_region(state, slab);
}

bool give_back_empty_slabs(State& state) {
    bool any = false;
    while (Mapping* slab = take_one_empty_slab(state)) {
        any = true;
        give_region(state, slab);
    }
    return any;
}

}  // namespace device
}  // namespace gcr
