// SPDX-License-Identifier: Apache-2.0
#include "device/pool_segments.h"

#include "core/sys.h"
#include "device/devices.h"
#include "device/regions.h"
#include "device/slabs.h"

namespace gcr {
namespace device {
namespace {

constexpr uint64_t kSegment = 32ull << 20;  // bytes; what CUDA's driver reserves at a time
constexpr uint32_t kLookUs = 200;
constexpr uint64_t kLeavingMs = 30000;  // longer than the daemon has to let go of one

// A limit is kept to the granularity of memory.
uint64_t limit_of(State& state, const Pool& pool) {
    uint64_t granularity = facts_of(state, pool.device).granularity;
    bool none = pool.limit == 0 || pool.limit > UINT64_MAX - granularity;
    return none ? UINT64_MAX : round_up(pool.limit, granularity);
}

// Two threads that grow a pool at once do not exceed its limit together.
bool begin_growing(State& state, Pool* pool, uint64_t bytes) {
    uint64_t limit = limit_of(state, *pool);
    Guard guard(state.lock);
    if (bytes > limit || pool->reserved + pool->growing > limit - bytes) return false;
    pool->growing += bytes;
    return true;
}

bool add_segment(Pool* pool, Mapping* segment) {
    if (!pool->segments.push(segment)) return false;
    if (!pool->slabs.add(&segment->range, static_cast<uint32_t>(segment->size / kSlabUnit))) {
        pool->segments.pop();
        return false;
    }
    pool->reserved += segment->size;
    if (pool->reserved > pool->reserved_most) pool->reserved_most = pool->reserved;
    return true;
}

// `segment`: null, if none could be made. False: the pool has not got it.
bool end_growing(State& state, Pool* pool, uint64_t bytes, Mapping* segment) {
    Guard guard(state.lock);
    pool->growing -= bytes;
    if (segment == nullptr) return false;
    if (add_segment(pool, segment)) return true;
    forget_region(state, segment);
    return false;
}

Result grow_by(State& state, Pool* pool, uint64_t bytes) {
    if (!begin_growing(state, pool, bytes)) return state.ops->out_of_memory;
    Mapping* segment = nullptr;
    Result result = make_region(state, pool, bytes, false, &segment);
    if (end_growing(state, pool, bytes, segment) || result != kSuccess) return result;
    give_region(state, segment);
    return state.ops->out_of_memory;
}

// What a pool with a limit has free, and in pieces too small.
bool make_way(State& state, Pool* pool) {
    Leaving leaving(state);
    {
        Guard across(state.settling);
        take_free_segments(state, pool, 0, &leaving);
    }
    return leaving.give_back();
}

Mapping* take_free_segment(Pool* pool, uint64_t keep) {
    for (size_t i = 0; i < pool->segments.size(); i++) {
        Mapping* segment = pool->segments[i];
        if (!pool->slabs.whole(segment->range) || pool->reserved - segment->size < keep) continue;
        pool->slabs.remove(&segment->range);
        pool->segments.swap_out(i);
        pool->reserved -= segment->size;
        return segment;
    }
    return nullptr;
}

}  // namespace

// In no list of mappings any more: its link is free for this one.
void Leaving::add(Mapping* segment) {
    forget_region(state_, segment);
    segment->sibling = first_;
    first_ = segment;
    state_.segments_leaving.fetch_add(1, std::memory_order_relaxed);  // state.lock orders it
}

bool Leaving::give_back() {
    bool any = first_ != nullptr;
    while (Mapping* segment = first_) {
        first_ = segment->sibling;
        give_region(state_, segment);
        state_.segments_leaving.fetch_sub(1, std::memory_order_release);  // pairs with wait_for_leaving(): it is back
    }
    return any;
}

// Where a whole segment has no room any more, what is needed may have.
Result grow(State& state, Pool* pool, uint64_t size) {
    uint64_t granularity = facts_of(state, pool->device).granularity;
    uint64_t least = round_up(size, granularity), usual = round_up(kSegment, granularity);
    Result none = state.ops->out_of_memory;
    Result result = least < usual ? grow_by(state, pool, usual) : none;
    if (result == none) result = grow_by(state, pool, least);
    if (result == none && pool->limit != 0 && make_way(state, pool)) result = grow_by(state, pool, least);
    return result;
}

bool wait_for_leaving(State& state) {
    if (state.segments_leaving.load(std::memory_order_acquire) == 0) return false;
    Deadline deadline(kLeavingMs);
    while (state.segments_leaving.load(std::memory_order_acquire) != 0 && !deadline.passed()) sleep_us(kLookUs);
    return true;
}

void take_free_segments(State& state, Pool* pool, uint64_t keep, Leaving* leaving) {
    Guard guard(state.lock);
    while (Mapping* segment = take_free_segment(pool, keep)) leaving->add(segment);
}

}  // namespace device
}  // namespace gcr
