// SPDX-License-Identifier: Apache-2.0
//
// Pools: stream-ordered allocation. A pool cuts segments, regions of at least 32 MiB, into blocks. The pool itself, its
// policies and its threshold are the driver's object; only its memory is ours.
//
// Order   what was freed in a stream may be given out in that stream at once: other streams wait for it until the
//         stream got there: it is idle, or an event that was recorded after it has passed. The driver's opportunistic reuse; an
//         allocation that finds no memory also waits for other streams, as its internal dependencies would. What is freed out of
//         order goes to the stream it was allocated in, which may still have work of earlier owners of the memory.
// Growth  a new segment where nothing free fits; whole free segments go when the program waits for the device and the pool
//         holds more than its threshold.
// Events  pool_streams.h. Segments: pool_segments.h.
#ifndef GCR_DEVICE_POOLS_H
#define GCR_DEVICE_POOLS_H

#include "device/state.h"

namespace gcr {
namespace device {

// A stream as one pool knows it: what was freed in it, which only it may have.
struct PoolStream {
    StreamName stream;
    FreeBlocks fresh;  // freed after the event was recorded, or there is none
    FreeBlocks marked;  // freed before
    uint64_t held;  // allocations made in it and not freed, and those being made
    uint64_t event;  // the vendor's; 0: none
    bool recorded;  // and not seen to have passed
    bool unmarked;  // the driver would not record it: the end of the stream's work is not known
    bool gone;  // the stream was destroyed: no more is freed in it
};

// A pool's reuse policies, its counters of memory and its threshold: CUDA's numbers, and HIP's. The remaining policy (1),
// to follow the program's events, is not ours.
enum PoolPolicy : uint32_t { kReuseOpportunistic = 2, kReuseInternal = 3 };
enum PoolCounter : uint32_t { kThreshold = 4, kReserved = 5, kReservedMost = 6, kUsed = 7, kUsedMost = 8 };

constexpr uint32_t policy_bit(uint32_t policy) {
    return 1u << policy;
}
constexpr uint32_t kEveryPolicy = policy_bit(kReuseOpportunistic) | policy_bit(kReuseInternal);

struct PoolTerms {
    int device;
    uint64_t limit = 0;  // bytes of the segments at most; 0: none
    uint64_t threshold = 0;  // bytes to keep when the program waits for the device
    uint32_t policies = kEveryPolicy;  // those switched on
};

// `key` is the driver's handle. Owner::slabs: free for every stream.
struct Pool : TreeNode<Pool>, Owner {
    Array<PoolStream*> streams;
    Array<Mapping*> segments;
    uint64_t reserved;  // bytes of the segments
    uint64_t reserved_most;
    uint64_t growing;  // bytes of segments that are being made
    uint64_t used;  // bytes as they were asked for
    uint64_t used_most;
    uint64_t limit;
    uint64_t threshold;
    uint32_t policies;
    bool leaving;  // the driver is destroying it: it may come back
    Pool* next_destroyed;
    uint64_t pins;  // threads that are using it: until then it is not freed, destroyed or not
};

// A pool for as long as it lives, or none.
class PinnedPool {
  public:
    PinnedPool() = default;
    PinnedPool(State& state, Pool* pool) : state_(&state), pool_(pool) {}  // pinned already, or null
    PinnedPool(PinnedPool&& other) : state_(other.state_), pool_(other.pool_) { other.pool_ = nullptr; }
    ~PinnedPool();
    PinnedPool(const PinnedPool&) = delete;
    PinnedPool& operator=(const PinnedPool&) = delete;

    explicit operator bool() const { return pool_ != nullptr; }
    Pool* get() const { return pool_; }
    Pool* operator->() const { return pool_; }

  private:
    State* state_ = nullptr;
    Pool* pool_ = nullptr;
};

inline Pool* pool_of(const Mapping& mapping) {
    return mapping.owner == nullptr ? nullptr : mapping.owner->pool;
}

// ---- in flight, no lock held
PinnedPool find_pool(State& state, uint64_t handle);
PinnedPool record_pool(State& state, uint64_t handle, const PoolTerms& terms);  // found or made; none: no host memory
// Forgotten before the driver destroys it: the next pool may have the same handle. Then its memory goes when the program
// has freed it.
Pool* take_pool(State& state, uint64_t handle);  // null: none of ours
void put_back_pool(State& state, Pool* pool);  // the driver kept it; null: does nothing
void leave_pool(State& state, Pool* pool);  // the driver destroyed it; null: does nothing

// The driver's code where there is no memory, also after the frees of all other streams were waited for.
Result allocate_in_pool(State& state, Pool* pool, const StreamName& stream, uint64_t size, uint64_t* address);
bool is_in_pool(State& state, uint64_t address);  // what allocate_in_pool() returned, and not freed
bool free_in_stream(State& state, uint64_t address, const StreamName& stream);  // false: not one of ours (any more)
Result give_to_pool(State& state, const Allocation& allocation);  // freed out of order: already out of the table

void trim_pool(State& state, Pool* pool, uint64_t keep);  // gives back whole free segments, down to `keep` bytes
void trim_to_thresholds(State& state);  // the program waited for the device
bool trim_all(State& state);  // true: memory was given back
void settle_pools(State& state);  // a capture is about to begin: after that no thread may ask what is free
void set_threshold(State& state, uint64_t handle, uint64_t bytes);
void set_policy(State& state, Pool* pool, uint32_t policy, bool on);  // anything but a PoolPolicy: does nothing
uint64_t counted(State& state, const Pool& pool, uint32_t counter);  // of our memory; 0 for what is no counter
void reset_most(State& state, Pool* pool, uint32_t counter);
void set_pool_access(State& state, Pool* pool, uint32_t devices, bool allowed);

// Something was freed, and a pool holds more than it should.
inline bool pools_hold_too_much(const State& state) {
    return state.pools_to_trim.load(std::memory_order_relaxed);
}

// It is about to be destroyed: its event is recorded while it can be. False: no pool knows it. The vendor is not asked for
// its id, which would break a capture that it takes part in.
bool leave_stream(State& state, uint64_t handle, uint64_t* id);
void return_to_stream(State& state, uint64_t id);  // the driver kept it
void settle_all_of(State& state, uint64_t owner);  // its streams and events are gone, and their work is done
// The program reset the device. Where it is `unused`, which is asked under state.lock, its pools are forgotten and their
// memory goes.
void free_pools_of(State& state, int device, bool (*unused)(int device));

}  // namespace device
}  // namespace gcr

#endif  // GCR_DEVICE_POOLS_H
