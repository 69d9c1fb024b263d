// SPDX-License-Identifier: Apache-2.0
//
// What pools know of streams: what was freed in one is free for all streams once an event behind it has passed.
//
// Lock     State::settling, across driver calls: one thread at a time makes, records and asks events, and pools and their
//          streams only go under it. Captures begin under it, too: a thread that holds it and finds none meets none.
// Captures asking would break one, and what is recorded in a stream that captures becomes part of it. So while there is one
//          no thread asks, and only a thread that just freed something records, in a stream that takes no part. Others
//          may still be made to wait for that.
#ifndef GCR_DEVICE_POOL_STREAMS_H
#define GCR_DEVICE_POOL_STREAMS_H

#include "device/pools.h"

namespace gcr {
namespace device {

// ---- under state.lock
PoolStream* stream_in(Pool* pool, const StreamName& stream);  // found or made; null: no host memory
FreeBlocks* free_for(PoolStream* from);  // where what is freed out of order goes; null: every stream may have it
void begin_anew(Pool* pool);  // nothing in it is left, and none of its streams

// ---- under state.settling, no other lock held
bool mark(State& state, Pool* pool, PoolStream* in);  // false: nothing waits in it, or the driver would not
bool settle(State& state, Pool* pool);  // true: something is free for every stream that was not
bool follow_others(State& state, Pool* pool, PoolStream* own);  // waits for them on the device; true: it has more
bool any_recorded(State& state, const Pool& pool);
void drop_unused_streams(State& state, Pool* pool);
void drop_streams(State& state, Pool* pool);

Pool* pool_from(State& state, uint64_t key);  // the first whose handle is not less

// `visit` may not take one out.
template <typename Visit>
void each_pool(State& state, Visit visit) {
    for (Pool* pool = pool_from(state, 0); pool != nullptr; pool = pool_from(state, pool->key + 1)) visit(pool);
}

}  // namespace device
}  // namespace gcr

#endif  // GCR_DEVICE_POOL_STREAMS_H
