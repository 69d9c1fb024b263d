// SPDX-License-Identifier: Apache-2.0
#include "device/pool_streams.h"

namespace gcr {
namespace device {
namespace {

// Null: no more.
PoolStream* nth(State& state, const Pool& pool, size_t index) {
    Guard guard(state.lock);
    return index < pool.streams.size() ? pool.streams[index] : nullptr;
}

template <typename Visit>
void each_stream(State& state, Pool* pool, Visit visit) {
    PoolStream* stream;
    for (size_t i = 0; (stream = nth(state, *pool, i)) != nullptr; i++) visit(stream);
}

template <typename Visit>
void each_stream(State& state, Visit visit) {
    auto of_pool = [&](Pool* pool) { each_stream(state, pool, [&](PoolStream* stream) { visit(pool, stream); }); };
    each_pool(state, of_pool);
    for (Pool* pool = state.destroyed_pools; pool != nullptr; pool = pool->next_destroyed) of_pool(pool);
}

bool is_empty(const PoolStream& stream) {
    return stream.fresh.units() == 0 && stream.marked.units() == 0;
}

// Its thread may end without our being told, or it is no more.
bool is_temporary(const PoolStream& stream) {
    return stream.gone || stream.stream.of_thread;
}

// What was freed in the stream up to now comes before whatever is asked of the driver next. False: nothing was.
bool draw_line(State& state, Pool* pool, PoolStream* in) {
    Guard guard(state.lock);
    pool->slabs.pour(&in->fresh, &in->marked);
    return in->marked.units() > 0;
}

bool record(State& state, PoolStream* in) {
    bool recorded = state.ops->mark(in->stream, &in->event);
    Guard guard(state.lock);
    in->recorded = recorded;
    in->unmarked = !recorded;
    return recorded;
}

void pour_marked(State& state, Pool* pool, PoolStream* in) {
    Guard guard(state.lock);
    in->recorded = false;
    pool->slabs.pour(&in->marked);
}

bool settle_by_event(State& state, Pool* pool, PoolStream* in) {
    if (!in->recorded || !state.ops->passed(in->stream, in->event)) return false;
    pour_marked(state, pool, in);
    return true;
}

bool settle(State& state, Pool* pool, PoolStream* in) {
    bool any = settle_by_event(state, pool, in);
    if (in->recorded || is_temporary(*in)) return any;
    if (!draw_line(state, pool, in)) return any;
    if (!state.ops->idle(in->stream)) {
        record(state, in);
        return any;
    }
    pour_marked(state, pool, in);
    return true;
}

// Its event stays recorded: what is freed out of order later may be behind it, too.
void hand_over(State& state, Pool* pool, PoolStream* from, PoolStream* to) {
    Guard guard(state.lock);
    pool->slabs.pour(&from->marked, &to->fresh);
}

bool is_behind_event(State& state, const PoolStream& stream) {
    Guard guard(state.lock);
    return stream.recorded && stream.marked.units() > 0;
}

void drop(State& state, PoolStream* stream) {
    if (stream->event != 0) state.ops->forget_event(stream->stream, stream->event);
    free(stream);
}

// Null: it is in use.
PoolStream* take_unused(State& state, Pool* pool, size_t index) {
    Guard guard(state.lock);
    PoolStream* stream = pool->streams[index];
    if (!is_temporary(*stream) || stream->held > 0 || stream->recorded || !is_empty(*stream)) return nullptr;
    pool->streams.swap_out(index);
    return stream;
}

bool holds(State& state, const PoolStream& stream) {
    Guard guard(state.lock);
    return stream.held > 0;
}

// In a capture an event would become part of it: what the stream has stays out of use until its owner ends.
void leave(State& state, Pool* pool, PoolStream* in) {
    bool captures = state.ops->captures() > 0 && state.ops->capturing(in->stream);
    if (!captures && (draw_line(state, pool, in) || holds(state, *in))) record(state, in);
    Guard guard(state.lock);
    in->unmarked = in->unmarked || captures;
    in->gone = true;
}

void settle_for_good(State& state, Pool* pool, PoolStream* in) {
    Guard guard(state.lock);
    in->event = 0;
    in->recorded = in->unmarked = false;
    in->gone = true;
    pool->slabs.pour(&in->fresh);
    pool->slabs.pour(&in->marked);
}

}  // namespace

// ---- under state.lock ---------------------------------------------------------------------------------------------

PoolStream* stream_in(Pool* pool, const StreamName& stream) {
    for (PoolStream* known : pool->streams)
        if (known->stream.id == stream.id && !known->gone) return known;
    PoolStream* made = make<PoolStream>();
    if (made == nullptr) return nullptr;
    made->stream = stream;
    if (pool->streams.push(made)) return made;
    free(made);
    return nullptr;
}

// Whose stream is no more, or another thread's, cannot be marked again. It was when it went, or whenever something was
// freed in it: behind whatever was done with the memory before.
FreeBlocks* free_for(PoolStream* from) {
    if (!is_temporary(*from) || from->unmarked) return &from->fresh;
    return from->recorded ? &from->marked : nullptr;
}

void begin_anew(Pool* pool) {
    for (PoolStream* stream : pool->streams) {
        stream->fresh = stream->marked = FreeBlocks();
        stream->recorded = stream->unmarked = false;
        stream->gone = true;
    }
    pool->slabs.dispose();
    pool->reserved = pool->used = 0;
}

// ---- under state.settling -----------------------------------------------------------------------------------------

bool mark(State& state, Pool* pool, PoolStream* in) {
    return draw_line(state, pool, in) && record(state, in);
}

bool settle(State& state, Pool* pool) {
    if (state.ops->captures() > 0) return false;
    bool any = false;
    each_stream(state, pool, [&](PoolStream* in) { any = settle(state, pool, in) || any; });
    drop_unused_streams(state, pool);
    return any;
}

bool follow_others(State& state, Pool* pool, PoolStream* own) {
    bool any = false, captures = state.ops->captures() > 0;
    each_stream(state, pool, [&](PoolStream* other) {
        if (other == own) return;
        bool recorded_before = captures || is_temporary(*other);
        if (!(recorded_before ? is_behind_event(state, *other) : mark(state, pool, other))) return;
        if (!state.ops->follow(own->stream, other->stream, other->event)) return;
        hand_over(state, pool, other, own);
        any = true;
    });
    if (any && own->stream.of_thread) mark(state, pool, own);
    return any;
}

bool any_recorded(State& state, const Pool& pool) {
    PoolStream* stream;
    for (size_t i = 0; (stream = nth(state, pool, i)) != nullptr; i++)
        if (stream->recorded) return true;
    return false;
}

void drop_unused_streams(State& state, Pool* pool) {
    for (size_t i = 0; nth(state, *pool, i) != nullptr;) {
        if (PoolStream* unused = take_unused(state, pool, i))
            drop(state, unused);
        else
            i++;
    }
}

void drop_streams(State& state, Pool* pool) {
    for (PoolStream* stream : pool->streams) drop(state, stream);
    pool->streams.dispose();
}

Pool* pool_from(State& state, uint64_t key) {
    Guard guard(state.lock);
    return state.pools.at_least(key);
}

// ---- streams and owners that go -----------------------------------------------------------------------------------

bool leave_stream(State& state, uint64_t handle, uint64_t* id) {
    bool any = false;
    Guard across(state.settling);
    each_stream(state, [&](Pool* pool, PoolStream* in) {
        if (in->stream.handle != handle || is_temporary(*in)) return;
        leave(state, pool, in);
        *id = in->stream.id;
        any = true;
    });
    return any;
}

void return_to_stream(State& state, uint64_t id) {
    Guard across(state.settling);
    each_stream(state, [&](Pool*, PoolStream* in) {
        if (in->stream.id != id) return;
        Guard guard(state.lock);
        in->gone = false;
    });
}

void settle_all_of(State& state, uint64_t owner) {
    Guard across(state.settling);
    each_stream(state, [&](Pool* pool, PoolStream* in) {
        if (in->stream.owner == owner) settle_for_good(state, pool, in);
    });
}

}  // namespace device
}  // namespace gcr
