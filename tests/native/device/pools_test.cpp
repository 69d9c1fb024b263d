// SPDX-License-Identifier: Apache-2.0
//
// Pools: memory that is given again comes after all work that had it before, on the device; limits, thresholds, policies.
#include "pool_calls.h"

namespace {

using namespace pool_calls;

void the_same_stream_has_it_back_at_once() {
    StreamName one = stream(1), two = stream(2);
    uint64_t a = must_allocate(pool(10), one, 3 * MiB);
    must_free(a, one);
    uint64_t other = must_allocate(pool(10), two, 3 * MiB);
    CHECK(other != a);  // stream 1 has not got there
    CHECK(must_allocate(pool(10), one, 3 * MiB) == a);
    CHECK(!gcr::device::free_in_stream(plain_memory, a + 512, one));
    must_free(a, one);
    CHECK(!gcr::device::free_in_stream(plain_memory, a, one));
    must_free(other, two);
    destroy(10);
    nothing_is_left();
}

void another_stream_has_it_once_it_is_there() {
    StreamName one = stream(1), two = stream(2);
    uint64_t a = must_allocate(pool(10), one, 30 * MiB);
    plain.streams[1].enqueued = 5;
    must_free(a, one);
    uint64_t b = must_allocate(pool(10), two, 30 * MiB);
    CHECK(b != a && plain.mapped.size() == 2);
    plain.streams[1].done = 5;
    uint64_t c = must_allocate(pool(10), two, 30 * MiB);
    CHECK(c == a && plain.mapped.size() == 2);
    must_free(b, two);
    must_free(c, two);
    destroy(10);
    nothing_is_left();
}

// No room: the stream waits for the others on the device, and no thread on the host.
void without_room_it_waits_for_the_others() {
    plain.room = 32 * MiB;
    StreamName one = stream(1), two = stream(2);
    uint64_t a = must_allocate(pool(10), one, 30 * MiB);
    plain.streams[1].enqueued = 5;
    must_free(a, one);
    CHECK(must_allocate(pool(10), two, 20 * MiB) == a);
    CHECK(plain.streams[2].after[1] == 5 && plain.synchronized == 0);
    uint64_t none = 0;
    CHECK(allocate(pool(10), two, 20 * MiB, &none) == kNoRoom && none == 0);
    must_free(a, two);
    destroy(10);
    nothing_is_left();
    plain.room = 1ull << 40;
}

void a_small_device_is_served_in_small_pieces() {
    plain.room = 6 * MiB;
    StreamName one = stream(1);
    uint64_t a = must_allocate(pool(10), one, 3 * MiB), b = must_allocate(pool(10), one, 2 * MiB);
    CHECK(plain.used() == 6 * MiB);
    must_free(a, one);
    must_free(b, one);
    destroy(10);
    nothing_is_left();
    plain.room = 1ull << 40;
}

void memory_beyond_the_threshold_goes_when_the_program_waits() {
    StreamName one = stream(1);
    gcr::device::set_threshold(plain_memory, pool(10)->key, 64 * MiB);
    uint64_t held[4];
    for (uint64_t& each : held) each = must_allocate(pool(10), one, 32 * MiB);
    CHECK(pool(10)->reserved == 128 * MiB && pool(10)->used == 128 * MiB);
    for (uint64_t each : held) must_free(each, one);
    CHECK(gcr::device::pools_hold_too_much(plain_memory));
    gcr::device::trim_to_thresholds(plain_memory);
    CHECK(pool(10)->reserved == 128 * MiB && gcr::device::pools_hold_too_much(plain_memory));  // not there yet
    all_done();
    gcr::device::trim_to_thresholds(plain_memory);
    CHECK(pool(10)->reserved == 64 * MiB && plain.used() == 64 * MiB);
    gcr::device::trim_pool(plain_memory, pool(10), 0);
    CHECK(pool(10)->reserved == 0 && pool(10)->reserved_most == 128 * MiB && plain.used() == 0);
    destroy(10);
    nothing_is_left();
}

void a_pool_keeps_to_its_limit() {
    StreamName one = stream(1);
    uint64_t a = must_allocate(pool(10, 40 * MiB), one, 20 * MiB), b = 0;
    CHECK(allocate(pool(10), one, 20 * MiB, &b) == kNoRoom);
    b = must_allocate(pool(10), one, 12 * MiB);
    must_free(a, one);
    must_free(b, one);
    all_done();
    must_free(must_allocate(pool(10), one, 40 * MiB), one);  // what is free makes way
    CHECK(pool(10)->reserved == 40 * MiB);
    destroy(10);
    nothing_is_left();
}

// Each of them has room when it asks; the second one while the first makes its segment.
void two_threads_keep_to_a_limit() {
    StreamName one = stream(1);
    Pool* limited = pool(10, 40 * MiB);
    plain.meanwhile = {"create", [&] {
                           uint64_t other = 0;
                           CHECK(allocate(limited, one, 32 * MiB, &other) == kNoRoom);
                       }};
    must_free(must_allocate(limited, one, 32 * MiB), one);
    CHECK(limited->reserved == 32 * MiB && limited->growing == 0);
    destroy(10);
    nothing_is_left();
}

void more_than_any_device_has_is_not_had() {
    StreamName one = stream(1);
    for (uint64_t size : {(1ull << 41) - 1, 1ull << 41, (1ull << 41) + 1024, ~0ull - 100, ~0ull}) {
        uint64_t address = 0;
        CHECK(allocate(pool(10), one, size, &address) == kNoRoom && address == 0);
    }
    CHECK(plain_memory.allocations.empty() && plain_memory.mappings.empty());
    destroy(10);
    nothing_is_left();
}

void peers_reach_what_is_there_and_what_comes() {
    StreamName one = stream(1);
    uint64_t a = must_allocate(pool(10), one, 32 * MiB);
    gcr::device::set_pool_access(plain_memory, pool(10), 2, true);
    uint64_t b = must_allocate(pool(10), one, 32 * MiB);
    CHECK(plain.mapped.at(a).write == 3 && plain.mapped.at(b).write == 3);
    gcr::device::set_pool_access(plain_memory, pool(10), 2, false);
    CHECK(plain.mapped.at(a).write == 1 && plain.mapped.at(b).read == 1);
    must_free(a, one);
    must_free(b, one);
    destroy(10);
    nothing_is_left();
}

// ---- out of order ---------------------------------------------------------------------------------------------------

// Its own work is over, as its program says; that of earlier users of the memory need not be.
void freed_at_once_it_stays_in_its_stream() {
    StreamName one = stream(1), two = stream(2);
    uint64_t a = must_allocate(pool(10), one, 30 * MiB);
    plain.streams[1].enqueued = 5;
    must_free(a, one);
    CHECK(must_allocate(pool(10), one, 30 * MiB) == a);
    must_free_at_once(a);
    uint64_t b = must_allocate(pool(10), two, 30 * MiB), c = must_allocate(pool(10), one, 30 * MiB);
    CHECK(b != a && c == a);
    must_free_at_once(c);
    must_free(b, two);
    destroy(10);
    nothing_is_left();
}

void freed_at_once_it_waits_for_a_stream_that_is_gone() {
    StreamName one = stream(1, 500), next = stream(2, 500);
    uint64_t a = must_allocate(pool(10), one, 30 * MiB);
    plain.streams[1].enqueued = 5;
    must_free(a, one);
    CHECK(must_allocate(pool(10), one, 30 * MiB) == a);
    destroy_stream(one);
    must_free_at_once(a);
    uint64_t b = must_allocate(pool(10), next, 30 * MiB);
    CHECK(b != a);
    plain.streams[1].done = plain.streams[1].enqueued;
    CHECK(must_allocate(pool(10), next, 30 * MiB) == a);
    must_free(a, next);
    must_free(b, next);
    destroy(10);
    nothing_is_left();
}

void freed_at_once_it_is_everybodys_where_nothing_is_left_to_do() {
    StreamName one = stream(1), two = stream(2);
    uint64_t a = must_allocate(pool(10), one, 30 * MiB);
    destroy_stream(one);
    all_done();
    gcr::device::trim_pool(plain_memory, pool(10), 0);  // sees its event passed
    must_free_at_once(a);
    plain.captures = 1;
    CHECK(must_allocate(pool(10), two, 30 * MiB) == a);
    plain.captures = 0;
    must_free(a, two);
    destroy(10);
    nothing_is_left();
}

// No other thread can ask or record its stream.
void freed_at_once_it_waits_for_a_stream_of_another_thread() {
    StreamName own = stream(1, 0, true), two = stream(2);
    uint64_t a = must_allocate(pool(10), own, 30 * MiB);
    plain.streams[1].enqueued = 5;
    must_free(a, own);
    CHECK(must_allocate(pool(10), own, 30 * MiB) == a);
    must_free_at_once(a);
    uint64_t b = must_allocate(pool(10), two, 30 * MiB);
    CHECK(b != a);
    plain.streams[1].done = 5;
    CHECK(must_allocate(pool(10), two, 30 * MiB) == a);
    must_free(a, two);
    must_free(b, two);
    destroy(10);
    nothing_is_left();
}

// ---- policies -------------------------------------------------------------------------------------------------------

void a_pool_may_forbid_to_reuse_what_others_freed() {
    StreamName one = stream(1), two = stream(2);
    gcr::device::set_policy(plain_memory, pool(10), gcr::device::kReuseOpportunistic, false);
    uint64_t a = must_allocate(pool(10), one, 30 * MiB);
    must_free(a, one);
    all_done();
    uint64_t b = must_allocate(pool(10), two, 30 * MiB);
    CHECK(b != a);
    CHECK(must_allocate(pool(10), one, 30 * MiB) == a);
    must_free(a, one);
    all_done();
    gcr::device::set_policy(plain_memory, pool(10), gcr::device::kReuseOpportunistic, true);
    CHECK(must_allocate(pool(10), two, 30 * MiB) == a);
    must_free(a, two);
    must_free(b, two);
    destroy(10);
    nothing_is_left();
}

void a_pool_may_forbid_to_wait_for_others() {
    plain.room = 32 * MiB;
    StreamName one = stream(1), two = stream(2);
    gcr::device::set_policy(plain_memory, pool(10), gcr::device::kReuseInternal, false);
    uint64_t a = must_allocate(pool(10), one, 30 * MiB), b = 0;
    plain.streams[1].enqueued = 5;
    must_free(a, one);
    CHECK(allocate(pool(10), two, 20 * MiB, &b) == kNoRoom && plain.streams[2].after.empty());
    destroy(10);
    nothing_is_left();
    plain.room = 1ull << 40;
}

}  // namespace

int main() {
    the_same_stream_has_it_back_at_once();
    another_stream_has_it_once_it_is_there();
    without_room_it_waits_for_the_others();
    a_small_device_is_served_in_small_pieces();
    memory_beyond_the_threshold_goes_when_the_program_waits();
    a_pool_keeps_to_its_limit();
    two_threads_keep_to_a_limit();
    more_than_any_device_has_is_not_had();
    peers_reach_what_is_there_and_what_comes();
    freed_at_once_it_stays_in_its_stream();
    freed_at_once_it_waits_for_a_stream_that_is_gone();
    freed_at_once_it_is_everybodys_where_nothing_is_left_to_do();
    freed_at_once_it_waits_for_a_stream_of_another_thread();
    a_pool_may_forbid_to_reuse_what_others_freed();
    a_pool_may_forbid_to_wait_for_others();
    return 0;
}
