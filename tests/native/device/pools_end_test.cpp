// SPDX-License-Identifier: Apache-2.0
//
// Pools, segments, streams and contexts that go, and what is still in use of them.
#include "pool_calls.h"

#include <chrono>
#include <future>

namespace {

using namespace pool_calls;

void a_stream_that_is_destroyed_leaves_its_memory() {
    StreamName one = stream(1, 500), next = stream(2, 500);  // the next one has its handle
    uint64_t a = must_allocate(pool(10), one, 30 * MiB);
    must_free(a, one);
    destroy_stream(one);
    uint64_t b = must_allocate(pool(10), next, 30 * MiB);
    CHECK(b != a);
    plain.streams[1].done = plain.streams[1].enqueued;
    CHECK(must_allocate(pool(10), next, 30 * MiB) == a);
    must_free(a, next);
    must_free(b, next);
    destroy(10);
    nothing_is_left();
}

void a_context_that_is_destroyed_has_done_its_work() {
    StreamName one = stream(1);
    uint64_t a = must_allocate(pool(10), one, 30 * MiB);
    must_free(a, one);
    gcr::device::settle_all_of(plain_memory, kContext);
    plain.events.clear();
    StreamName two = stream(2);
    CHECK(must_allocate(pool(10), two, 30 * MiB) == a);
    must_free(a, two);
    destroy(10);
    nothing_is_left();
}

void a_destroyed_pool_serves_until_all_is_freed() {
    StreamName one = stream(1);
    Pool* old = pool(10);
    uint64_t a = must_allocate(old, one, MiB);
    destroy(10);
    CHECK(pool(10) != old);
    CHECK(gcr::device::is_in_pool(plain_memory, a));
    must_free(a, one);
    destroy(10);
    nothing_is_left();
}

// Another thread has set a pool of its own meanwhile, and destroyed the one this thread was told.
void a_destroyed_pool_stays_for_who_found_it() {
    StreamName one = stream(1);
    pool(10);
    uint64_t a;
    {
        gcr::device::PinnedPool found = gcr::device::find_pool(plain_memory, 10);
        destroy(10);
        gcr::device::trim_all(plain_memory);
        CHECK(!gcr::device::find_pool(plain_memory, 10) && plain_memory.destroyed_pools == found.get());
        a = must_allocate(found.get(), one, MiB);
    }
    gcr::device::trim_all(plain_memory);
    CHECK(plain_memory.destroyed_pools != nullptr && plain.used() == 32 * MiB);
    must_free(a, one);
    nothing_is_left();
}

bool somebody_left(int) {
    return false;
}

void a_reset_device_has_no_pool_memory() {
    StreamName one = stream(1);
    uint64_t a = must_allocate(pool(10), one, MiB);
    must_allocate(pool(10), one, MiB);
    must_allocate(pool(11), one, MiB);
    must_free(a, one);
    destroy(11);
    gcr::device::free_pools_of(plain_memory, 0, somebody_left);
    CHECK(plain_memory.allocations.size() == 2 && plain.used() == 64 * MiB);
    gcr::device::free_pools_of(plain_memory, 0, nobody_left);
    CHECK(plain_memory.allocations.empty());
    nothing_is_left();
}

// Between finding the pool and being given memory of it, at each of the driver's calls.
void a_reset_spares_who_is_just_allocating() {
    StreamName one = stream(1);
    for (const char* operation : {"create", "reserve", "map", "set_access"}) {
        pool(10);
        gcr::device::PinnedPool pinned = gcr::device::find_pool(plain_memory, 10);
        Pool* old = pinned.get();
        must_allocate(old, one, MiB);
        plain.meanwhile = {operation, [] { gcr::device::free_pools_of(plain_memory, 0, nobody_left); }};
        uint64_t a = must_allocate(old, one, 40 * MiB);
        CHECK(!plain.meanwhile.second && pool(10) != old);
        destroy(10);
        CHECK(plain_memory.allocations.size() == 1 && old->used == 40 * MiB && plain.used() == 40 * MiB);
        must_free(a, one);
        all_done();
        gcr::device::trim_to_thresholds(plain_memory);
        CHECK(plain.used() == 0 && !gcr::device::pools_hold_too_much(plain_memory));
        CHECK(plain_memory.destroyed_pools == old && old->pins == 1);
    }
    nothing_is_left();
}

void a_stream_goes_while_its_pool_is_being_destroyed() {
    StreamName one = stream(1), two = stream(2);
    uint64_t a = must_allocate(pool(10), one, 30 * MiB);
    must_free(a, one);
    Pool* leaving = gcr::device::take_pool(plain_memory, 10);
    destroy_stream(one);
    CHECK(!gcr::device::trim_all(plain_memory));  // it may come back
    gcr::device::put_back_pool(plain_memory, leaving);
    CHECK(pool(10) == leaving && plain_memory.destroyed_pools == nullptr);
    Pool* empty = pool(11);
    gcr::device::take_pool(plain_memory, 11);
    gcr::device::trim_all(plain_memory);
    CHECK(plain_memory.destroyed_pools == empty);
    gcr::device::leave_pool(plain_memory, empty);
    uint64_t b = must_allocate(pool(10), two, 30 * MiB);
    CHECK(b != a);
    must_free(b, two);
    destroy(10);
    nothing_is_left();
}

// The daemon may take its time to let go of a segment: no other thread waits for that.
void whoever_lets_go_of_a_segment_holds_no_lock() {
    StreamName one = stream(1);
    uint64_t a = must_allocate(pool(10), one, 30 * MiB);
    plain_memory.mappings.first()->handle->exported = true;
    must_free(a, one);
    all_done();
    fake::on_released = [] {
        std::future<void> other = std::async(std::launch::async, [] { gcr::Guard guard(plain_memory.settling); });
        CHECK(other.wait_for(std::chrono::seconds(20)) == std::future_status::ready);
    };
    gcr::device::trim_pool(plain_memory, pool(10), 0);
    CHECK(fake::released.size() == 1);
    fake::on_released = nullptr;
    fake::released.clear();
    destroy(10);
    nothing_is_left();
}

}  // namespace

int main() {
    a_stream_that_is_destroyed_leaves_its_memory();
    a_context_that_is_destroyed_has_done_its_work();
    a_destroyed_pool_serves_until_all_is_freed();
    a_destroyed_pool_stays_for_who_found_it();
    a_reset_device_has_no_pool_memory();
    a_reset_spares_who_is_just_allocating();
    a_stream_goes_while_its_pool_is_being_destroyed();
    whoever_lets_go_of_a_segment_holds_no_lock();
    return 0;
}
