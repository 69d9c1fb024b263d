// SPDX-License-Identifier: Apache-2.0
//
// Pools while a stream captures: no call of theirs breaks a capture or becomes part of it.
#include "pool_calls.h"

#include <atomic>
#include <chrono>
#include <thread>

namespace {

using namespace pool_calls;

constexpr uint64_t kCaptured = 500;

int32_t begin_capture(std::atomic<bool>* begun) {
    auto driver_call = [&] {
        *begun = true;
        return 0;
    };
    return plain_memory.captures.begin(
        plain_memory.settling, {kCaptured, false, false}, 0, [] { return uint64_t{0}; }, driver_call);
}

// By another thread, at each call by which pools ask or record. It would break a capture, or become part of it.
void a_capture_waits_for_who_asks(const char* operation) {
    plain.room = 64 * MiB;
    StreamName one = stream(1), two = stream(2);
    std::atomic<bool> begun{false};
    std::thread capturing;
    plain.meanwhile = {
        operation, [&] {
            capturing = std::thread([&] { CHECK(begin_capture(&begun) == 0); });
            std::this_thread::sleep_for(std::chrono::milliseconds(50));  // for it to come as far as it may
            CHECK(!begun);
        }};
    uint64_t a = must_allocate(pool(10), one, 30 * MiB);
    plain.streams[1].enqueued += 5;
    must_free(a, one);
    uint64_t b = must_allocate(pool(10), two, 30 * MiB), c = must_allocate(pool(10), two, 30 * MiB);
    must_free(b, two);
    must_free(c, two);
    CHECK(!plain.meanwhile.second);
    capturing.join();
    plain_memory.captures.forget_on(kCaptured);
    destroy(10);
    nothing_is_left();
    plain.room = 1ull << 40;
}

// The driver's calls say so where anything but a stream that takes no part is asked or recorded.
void during_a_capture_a_thread_marks_its_own_stream() {
    StreamName own = stream(1, 0, true), two = stream(2);
    uint64_t a = must_allocate(pool(10), own, 30 * MiB);
    plain.captures = 1;
    must_free(a, own);
    plain.captures = 0;
    all_done();
    CHECK(must_allocate(pool(10), two, 30 * MiB) == a);
    must_free(a, two);
    destroy(10);
    nothing_is_left();
}

void during_a_capture_others_wait_for_what_was_freed() {
    plain.room = 32 * MiB;
    StreamName one = stream(1), two = stream(2), three = stream(3);
    uint64_t a = must_allocate(pool(10), one, 30 * MiB);
    plain.streams[1].enqueued = 5;
    must_free(a, one);
    gcr::device::settle_pools(plain_memory);
    plain.captures = 1;
    CHECK(must_allocate(pool(10), two, 30 * MiB) == a && plain.streams[2].after[1] == 5);
    must_free(a, two);
    CHECK(must_allocate(pool(10), three, 30 * MiB) == a && plain.streams[3].after[2] == plain.streams[2].enqueued);
    must_free(a, three);
    plain.captures = 0;
    destroy(10);
    nothing_is_left();
    plain.room = 1ull << 40;
}

void during_a_capture_a_stream_that_goes_is_marked() {
    StreamName one = stream(1), two = stream(2);
    uint64_t a = must_allocate(pool(10), one, 30 * MiB);
    must_free(a, one);
    plain.captures = 1;
    destroy_stream(one);
    plain.captures = 0;
    uint64_t b = must_allocate(pool(10), two, 30 * MiB);
    CHECK(b != a);
    all_done();
    CHECK(must_allocate(pool(10), two, 30 * MiB) == a);
    must_free(a, two);
    must_free(b, two);
    destroy(10);
    nothing_is_left();
}

// An event would become part of the capture: what the stream had before stays out of use until its context ends.
void a_stream_that_goes_with_its_capture_is_not_marked() {
    StreamName one = stream(1), two = stream(2);
    uint64_t a = must_allocate(pool(10), one, 30 * MiB), b = must_allocate(pool(10), one, 30 * MiB);
    must_free(a, one);
    plain.captures = 1;
    plain.streams[1].captures = true;
    destroy_stream(one);
    plain.captures = 0;
    must_free_at_once(b);
    all_done();
    uint64_t c = must_allocate(pool(10), two, 30 * MiB);
    CHECK(c != a && c != b);
    gcr::device::settle_all_of(plain_memory, kContext);
    must_free(c, stream(3));
    CHECK(must_allocate(pool(10), stream(4), 30 * MiB) != c);
    gcr::device::free_pools_of(plain_memory, 0, nobody_left);
    nothing_is_left();
}

}  // namespace

int main() {
    for (const char* operation : {"idle", "mark", "passed", "follow"}) a_capture_waits_for_who_asks(operation);
    during_a_capture_a_thread_marks_its_own_stream();
    during_a_capture_others_wait_for_what_was_freed();
    during_a_capture_a_stream_that_goes_is_marked();
    a_stream_that_goes_with_its_capture_is_not_marked();
    return 0;
}
