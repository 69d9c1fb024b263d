// SPDX-License-Identifier: Apache-2.0
#include "device/pools.h"

#include "device/allocations.h"
#include "device/devices.h"
#include "device/peers.h"
#include "device/pool_segments.h"
#include "device/pool_streams.h"
#include "device/slabs.h"

namespace gcr {
namespace device {
namespace {

constexpr int kAttempts = 8;  // another thread may take what this one added

// ---- under state.lock ---------------------------------------------------------------------------------------------

// What the stream itself freed comes first: it goes where it was, and leaves room to others.
Block* take_block(Pool* pool, PoolStream* own, uint32_t units) {
    Block* block = pool->slabs.take(&own->fresh, units);
    if (block == nullptr) block = pool->slabs.take(&own->marked, units);
    return block != nullptr ? block : pool->slabs.take(units);
}

void count_used(Pool* pool, uint64_t bytes) {
    pool->used += bytes;
    if (pool->used > pool->used_most) pool->used_most = pool->used;
}

void note_excess(State& state, const Pool& pool) {
    if (pool.reserved > pool.threshold) state.pools_to_trim.store(true, std::memory_order_relaxed);
}

PinnedPool pin(State& state, Pool* pool) {
    if (pool != nullptr) pool->pins++;
    return {state, pool};
}

void link_destroyed(State& state, Pool* pool) {
    pool->next_destroyed = state.destroyed_pools;
    state.destroyed_pools = pool;
}

void unlink_destroyed(State& state, const Pool* pool) {
    Pool** link = &state.destroyed_pools;
    while (*link != nullptr && *link != pool) link = &(*link)->next_destroyed;
    if (*link != nullptr) *link = pool->next_destroyed;
}

// ---- allocations --------------------------------------------------------------------------------------------------

// It does not go before end_holding() or the end of the allocation.
PoolStream* begin_holding(State& state, Pool* pool, const StreamName& stream) {
    Guard guard(state.lock);
    PoolStream* own = stream_in(pool, stream);
    if (own != nullptr) own->held++;
    return own;
}

void end_holding(State& state, PoolStream* own) {
    Guard guard(state.lock);
    own->held--;
}

// `address` is told under the lock: once recorded, the allocation may be freed by another thread.
bool take(State& state, Pool* pool, Allocation* allocation, uint64_t* address) {
    Guard guard(state.lock);
    uint64_t units = round_up(allocation->size, kSlabUnit) / kSlabUnit;
    Block* block = take_block(pool, allocation->stream, static_cast<uint32_t>(units));
    if (block == nullptr) return false;
    Mapping* segment = static_cast<Mapping*>(block->range->owner);
    *address = allocation->key = segment->key + block->start * kSlabUnit;
    allocation->mapping = segment;
    allocation->block = block;
    allocation->id = ++state.last_allocation;
    state.allocations.insert(allocation);
    count_used(pool, allocation->size);
    return true;
}

bool allows(State& state, const Pool& pool, PoolPolicy policy) {
    Guard guard(state.lock);
    return (pool.policies & policy_bit(policy)) != 0;
}

// What others are done with comes before more memory, and more memory before waiting for them on the device.
Result find_room(State& state, Pool* pool, Allocation* allocation, uint64_t* address) {
    if (take(state, pool, allocation, address)) return kSuccess;
    if (allows(state, *pool, kReuseOpportunistic)) {
        Guard across(state.settling);
        if (settle(state, pool) && take(state, pool, allocation, address)) return kSuccess;
    }
    Result grown = kSuccess;
    for (int attempt = 0; attempt < kAttempts && grown == kSuccess; attempt++) {
        grown = grow(state, pool, allocation->size);
        if (grown == kSuccess && take(state, pool, allocation, address)) return kSuccess;
    }
    if (allows(state, *pool, kReuseInternal)) {
        Guard across(state.settling);
        bool more = follow_others(state, pool, allocation->stream);
        if (more && take(state, pool, allocation, address)) return kSuccess;
    }
    return grown == kSuccess ? state.ops->out_of_memory : grown;
}

Allocation* forget_allocation(State& state, uint64_t address) {
    Allocation* allocation = state.allocations.find(address);
    Pool* pool = allocation == nullptr ? nullptr : pool_of(*allocation->mapping);
    if (pool == nullptr) return nullptr;
    state.allocations.erase(allocation);
    pool->used -= allocation->size;
    allocation->stream->held--;
    note_excess(state, *pool);
    return allocation;
}

struct Freed {
    Pool* pool;  // null: not one of ours
    PoolStream* in;  // null: no host memory; the block stays out of use
};

Freed free_block(State& state, uint64_t address, const StreamName& stream) {
    Guard guard(state.lock);
    Allocation* allocation = forget_allocation(state, address);
    if (allocation == nullptr) return {};
    Pool* pool = pool_of(*allocation->mapping);
    PoolStream* in = stream_in(pool, stream);
    if (in != nullptr) pool->slabs.give(&in->fresh, allocation->block);
    free(allocation);
    return {pool, in};
}

// ---- giving back: under state.settling ----------------------------------------------------------------------------

void bury(State& state, Pool* pool) {
    drop_streams(state, pool);
    pool->segments.dispose();
    pool->slabs.dispose();
    free(pool);
}

// A thread that has it pinned may be adding a segment: both are asked at once.
bool in_use(State& state, const Pool& pool) {
    Guard guard(state.lock);
    return pool.pins > 0 || !pool.segments.empty();
}

// Those whose last memory the program has freed.
void trim_destroyed(State& state, Leaving* leaving) {
    for (Pool* next = state.destroyed_pools; Pool* pool = next;) {
        next = pool->next_destroyed;
        if (pool->leaving) continue;
        settle(state, pool);
        take_free_segments(state, pool, 0, leaving);
        if (in_use(state, *pool)) continue;
        unlink_destroyed(state, pool);
        bury(state, pool);
    }
}

bool destroyed_hold_memory(const State& state) {
    const Pool* pool = state.destroyed_pools;
    while (pool != nullptr && pool->segments.empty()) pool = pool->next_destroyed;
    return pool != nullptr;
}

// False: no pool of the device is left, or it is in use.
bool retire_pool_of(State& state, int device, bool (*unused)(int device)) {
    Guard guard(state.lock);
    Pool* pool = state.pools.first();
    while (pool != nullptr && pool->device != device) pool = state.pools.after(pool);
    if (pool == nullptr || !unused(device)) return false;
    state.pools.erase(pool);
    pool->threshold = 0;
    link_destroyed(state, pool);
    return true;
}

// Everything in a pool, at once: what another thread allocates in it from then on is not of this.
void take_contents(State& state, Pool* pool, bool (*unused)(int device), Leaving* leaving) {
    {
        Guard guard(state.lock);
        if (!unused(pool->device)) return;
        drop_allocation_records(state, pool);
        for (Mapping* segment : pool->segments) leaving->add(segment);
        pool->segments.clear();
        begin_anew(pool);
    }
    drop_unused_streams(state, pool);
}

}  // namespace

// ---- pools --------------------------------------------------------------------------------------------------------

PinnedPool::~PinnedPool() {
    if (pool_ == nullptr) return;
    Guard guard(state_->lock);
    pool_->pins--;
    if (state_->destroyed_pools != nullptr) state_->pools_to_trim.store(true, std::memory_order_relaxed);
}

PinnedPool find_pool(State& state, uint64_t handle) {
    Guard guard(state.lock);
    return pin(state, state.pools.find(handle));
}

PinnedPool record_pool(State& state, uint64_t handle, const PoolTerms& terms) {
    Guard guard(state.lock);
    Pool* pool = state.pools.find(handle);
    if (pool != nullptr) return pin(state, pool);
    pool = make<Pool>();
    if (pool == nullptr) return {};
    pool->key = handle;
    pool->device = terms.device;
    pool->limit = terms.limit;
    pool->threshold = terms.threshold;
    pool->policies = terms.policies;
    pool->pool = pool;
    state.pools.insert(pool);
    return pin(state, pool);
}

// Among the destroyed ones at once: a stream that goes meanwhile goes for this pool, too.
Pool* take_pool(State& state, uint64_t handle) {
    Guard across(state.settling);
    Guard guard(state.lock);
    Pool* pool = state.pools.find(handle);
    if (pool == nullptr) return nullptr;
    state.pools.erase(pool);
    pool->leaving = true;
    link_destroyed(state, pool);
    return pool;
}

// One that was recorded anew meanwhile, as a default pool may be, serves from then on; this one until all is freed.
void put_back_pool(State& state, Pool* pool) {
    if (pool == nullptr) return;
    Guard across(state.settling);
    Guard guard(state.lock);
    pool->leaving = false;
    if (state.pools.insert(pool)) unlink_destroyed(state, pool);
}

void leave_pool(State& state, Pool* pool) {
    if (pool == nullptr) return;
    Leaving leaving(state);
    Guard across(state.settling);
    {
        Guard guard(state.lock);
        pool->leaving = false;
        pool->threshold = 0;
    }
    trim_destroyed(state, &leaving);
    state.pools_to_trim.store(true, std::memory_order_relaxed);
}

Result allocate_in_pool(State& state, Pool* pool, const StreamName& stream, uint64_t size, uint64_t* address) {
    if (size > kLargestSegment) return state.ops->out_of_memory;
    Allocation* allocation = make<Allocation>();
    PoolStream* own = allocation == nullptr ? nullptr : begin_holding(state, pool, stream);
    Result result = state.ops->out_of_memory;
    if (own != nullptr) {
        allocation->size = size;
        allocation->stream = own;
        result = find_room(state, pool, allocation, address);
        if (result != kSuccess) end_holding(state, own);
    }
    if (result != kSuccess) free(allocation);
    return result;
}

bool is_in_pool(State& state, uint64_t address) {
    Guard guard(state.lock);
    Allocation* allocation = state.allocations.find(address);
    return allocation != nullptr && pool_of(*allocation->mapping) != nullptr;
}

// Where no other thread can record an event later: in a thread's own stream, and beside a capture.
bool free_in_stream(State& state, uint64_t address, const StreamName& stream) {
    if (!stream.of_thread && state.ops->captures() == 0) return free_block(state, address, stream).pool != nullptr;
    Guard across(state.settling);
    Freed freed = free_block(state, address, stream);
    if (freed.in != nullptr) mark(state, freed.pool, freed.in);
    return freed.pool != nullptr;
}

Result give_to_pool(State& state, const Allocation& allocation) {
    Guard guard(state.lock);
    Pool* pool = pool_of(*allocation.mapping);
    pool->used -= allocation.size;
    allocation.stream->held--;
    if (FreeBlocks* own = free_for(allocation.stream))
        pool->slabs.give(own, allocation.block);
    else
        pool->slabs.give(allocation.block);
    note_excess(state, *pool);
    return kSuccess;
}

void trim_pool(State& state, Pool* pool, uint64_t keep) {
    Leaving leaving(state);
    Guard across(state.settling);
    settle(state, pool);
    take_free_segments(state, pool, keep, &leaving);
}

// Not during a capture: what is free is not known then, and is left for the next wait after it.
void trim_to_thresholds(State& state) {
    Leaving leaving(state);
    Guard across(state.settling);
    if (state.ops->captures() > 0 || !state.pools_to_trim.exchange(false, std::memory_order_relaxed)) return;
    each_pool(state, [&](Pool* pool) {
        settle(state, pool);
        take_free_segments(state, pool, pool->threshold, &leaving);
        if (any_recorded(state, *pool)) note_excess(state, *pool);
    });
    trim_destroyed(state, &leaving);
    if (destroyed_hold_memory(state)) state.pools_to_trim.store(true, std::memory_order_relaxed);
}

bool trim_all(State& state) {
    Leaving leaving(state);
    {
        Guard across(state.settling);
        each_pool(state, [&](Pool* pool) {
            settle(state, pool);
            take_free_segments(state, pool, 0, &leaving);
        });
        trim_destroyed(state, &leaving);
    }
    bool any = leaving.give_back();
    return wait_for_leaving(state) || any;
}

void settle_pools(State& state) {
    Guard across(state.settling);
    each_pool(state, [&](Pool* pool) {
        if (allows(state, *pool, kReuseOpportunistic)) settle(state, pool);
    });
}

void set_threshold(State& state, uint64_t handle, uint64_t bytes) {
    Guard guard(state.lock);
    Pool* pool = state.pools.find(handle);
    if (pool == nullptr) return;
    pool->threshold = bytes;
    note_excess(state, *pool);
}

void set_policy(State& state, Pool* pool, uint32_t policy, bool on) {
    if (policy != kReuseOpportunistic && policy != kReuseInternal) return;
    Guard guard(state.lock);
    pool->policies = on ? pool->policies | policy_bit(policy) : pool->policies & ~policy_bit(policy);
}

uint64_t counted(State& state, const Pool& pool, uint32_t counter) {
    Guard guard(state.lock);
    switch (counter) {
        case kReserved:
            return pool.reserved;
        case kReservedMost:
            return pool.reserved_most;
        case kUsed:
            return pool.used;
        case kUsedMost:
            return pool.used_most;
        default:
            return 0;
    }
}

void reset_most(State& state, Pool* pool, uint32_t counter) {
    Guard guard(state.lock);
    if (counter == kReservedMost) pool->reserved_most = pool->reserved;
    if (counter == kUsedMost) pool->used_most = pool->used;
}

void set_pool_access(State& state, Pool* pool, uint32_t devices, bool allowed) {
    {
        Guard guard(state.lock);
        pool->admitted = allowed ? pool->admitted | devices : pool->admitted & ~devices;
        state.peer_changes++;
    }
    apply_access(state, pool);
}

void free_pools_of(State& state, int device, bool (*unused)(int device)) {
    Leaving leaving(state);
    Guard across(state.settling);
    while (retire_pool_of(state, device, unused)) continue;
    for (Pool* pool = state.destroyed_pools; pool != nullptr; pool = pool->next_destroyed)
        if (pool->device == device) take_contents(state, pool, unused, &leaving);
    trim_destroyed(state, &leaving);
}

}  // namespace device
}  // namespace gcr
