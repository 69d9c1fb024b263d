// SPDX-License-Identifier: Apache-2.0
//
// Pools against vector clocks: work that is given memory comes after all work that had it before, on the device.
#include "device/pools.h"

#include <atomic>
#include <chrono>
#include <future>
#include <random>
#include <thread>

#include "check.h"
#include "device/allocations.h"
#include "fake_driver.h"

namespace {

using fake::kNoRoom;
using fake::MiB;
using fake::plain;
using fake::plain_memory;
using gcr::device::Pool;
using gcr::device::StreamName;

constexpr uint64_t kContext = 77;

StreamName stream(uint64_t id, uint64_t handle = 0, bool of_thread = false) {
    plain.streams[id];
    return {handle != 0 ? handle : id, kContext, id, of_thread, of_thread};
}

Pool* pool(uint64_t key, uint64_t limit = 0) {
    return gcr::device::record_pool(plain_memory, key, {0, limit}).get();
}

int32_t allocate(Pool* from, const StreamName& in, uint64_t size, uint64_t* address) {
    plain.calling = in.id;
    return gcr::device::allocate_in_pool(plain_memory, from, in, size, address);
}

uint64_t must_allocate(Pool* from, const StreamName& in, uint64_t size) {
    uint64_t address = 0;
    CHECK(allocate(from, in, size, &address) == 0);
    plain.streams[in.id].enqueued++;
    return address;
}

void must_free(uint64_t address, const StreamName& in) {
    plain.calling = in.id;
    CHECK(gcr::device::is_in_pool(plain_memory, address));
    CHECK(gcr::device::free_in_stream(plain_memory, address, in));
}

// In no stream's order, as cuMemFree.
void must_free_at_once(uint64_t address) {
    plain.calling = 0;
    gcr::device::Allocation* allocation = gcr::device::take_allocation(plain_memory, address);
    CHECK(allocation != nullptr && gcr::device::free_when_idle(plain_memory, allocation) == 0);
}

void destroy_stream(uint64_t id) {
    gcr::device::leave_stream(plain_memory, id);
    plain.streams[id].alive = false;
}

void all_done() {
    for (auto& [id, each] : plain.streams) each.done = each.enqueued;
}

void destroy(uint64_t key) {
    gcr::device::leave_pool(plain_memory, gcr::device::take_pool(plain_memory, key));
}

void nothing_is_left() {
    all_done();
    gcr::device::trim_to_thresholds(plain_memory);
    CHECK(plain.physical.empty() && plain.mapped.empty() && plain.reserved.empty());
    CHECK(plain_memory.pools.empty() && plain_memory.destroyed_pools == nullptr);
    CHECK(plain.events.empty());
    plain.streams.clear();
}

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

void a_stream_that_is_destroyed_leaves_its_memory() {
    StreamName one = stream(1, 500), next = stream(2, 500);  // the next one has its handle
    uint64_t a = must_allocate(pool(10), one, 30 * MiB);
    must_free(a, one);
    destroy_stream(1);
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

bool nobody_left(int) {
    return true;
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
    destroy_stream(1);
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
    destroy_stream(1);
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

// ---- captures -------------------------------------------------------------------------------------------------------

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
    destroy_stream(1);
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
    destroy_stream(1);
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

// ---- pools and segments that go -------------------------------------------------------------------------------------

void a_stream_goes_while_its_pool_is_being_destroyed() {
    StreamName one = stream(1), two = stream(2);
    uint64_t a = must_allocate(pool(10), one, 30 * MiB);
    must_free(a, one);
    Pool* leaving = gcr::device::take_pool(plain_memory, 10);
    destroy_stream(1);
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

// ThreadSanitizer finds nothing in what one thread does, and takes long to say so.
#ifdef __SANITIZE_THREAD__
constexpr unsigned kSchedules = 1;
#else
constexpr unsigned kSchedules = 8;
#endif

// ---- any schedule -----------------------------------------------------------------------------------------------------

struct Freed {
    uint64_t stream;
    uint64_t position;
};

// Freed memory: ranges that do not overlap, by their beginning. A pool divides memory into units of 512 bytes.
class FreedRanges {
  public:
    void add(uint64_t begin, uint64_t end, const Freed& freed) { ranges_[begin] = {end, freed}; }

    void add(const FreedRanges& others) {
        for (const auto& [begin, range] : others.ranges_) add(begin, range.end, range.freed);
    }

    // Moves to `out` what lies between `begin` and `end`.
    void take(uint64_t begin, uint64_t end, FreedRanges* out) {
        cut(begin);
        cut(end);
        auto first = ranges_.lower_bound(begin), last = ranges_.lower_bound(end);
        out->ranges_.insert(first, last);
        ranges_.erase(first, last);
    }

    template <typename Check>
    void each(Check check) const {
        for (const auto& [begin, range] : ranges_) check(range.freed);
    }

  private:
    struct Range {
        uint64_t end;
        Freed freed;
    };

    void cut(uint64_t at) {
        auto after = ranges_.upper_bound(at);
        if (after == ranges_.begin()) return;
        auto& [begin, range] = *std::prev(after);
        if (begin == at || range.end <= at) return;
        ranges_[at] = range;
        range.end = at;
    }

    std::map<uint64_t, Range> ranges_;
};

struct Live {
    uint64_t size;
    uint64_t pool;
    FreedRanges before;  // the frees of its memory's earlier users
};

class Schedule {
  public:
    explicit Schedule(unsigned seed) : random_(seed) {
        plain.room = 96 * MiB;
        for (uint64_t i = 0; i < 4; i++) names_.push_back(stream(next_id_++, 100 + i, i == 3));
    }

    void run() {
        for (int i = 0; i < 3000; i++) step();
        for (const auto& [address, live] : std::map<uint64_t, Live>(live_)) give(address);
        plain.captures = 0;
        for (uint64_t key : {10, 11})
            if (plain_memory.pools.find(key) != nullptr) destroy(key);
        for (StreamName& name : names_)  // what only its thread could have recorded
            if (name.of_thread) gcr::device::settle_all_of(plain_memory, kContext), plain.events.clear();
        nothing_is_left();
        plain.room = 1ull << 40;
    }

  private:
    static uint64_t whole_units(uint64_t end) { return (end + 511) / 512 * 512; }

    uint64_t below(uint64_t limit) { return random_() % limit; }
    StreamName& any_stream() { return names_[below(names_.size())]; }

    void step() {
        plain.calling = 0;
        uint64_t what = below(100);
        if (what < 40) return take();
        if (what < 70 && !live_.empty()) return give(std::next(live_.begin(), below(live_.size()))->first);
        if (what < 73 && !live_.empty()) return give_at_once(std::next(live_.begin(), below(live_.size()))->first);
        if (what < 85) return advance();
        if (what < 90) return gcr::device::trim_to_thresholds(plain_memory);
        if (what < 93) return gcr::device::set_threshold(plain_memory, 10 + below(2), below(4) * 32 * MiB);
        if (what < 95 && plain_memory.pools.find(11) != nullptr)
            return gcr::device::trim_pool(plain_memory, pool(11), 0);
        if (what < 97) return replace_stream();
        if (what < 98) return destroy(11);
        plain.captures = below(2);
    }

    void take() {
        StreamName& in = any_stream();
        uint64_t key = 10 + below(2), size = below(4) == 0 ? 1 + below(40 * MiB) : 1 + below(100000), address = 0;
        if (allocate(pool(key), in, size, &address) != 0) return;
        live_[address] = {size, key, comes_after_everybody(address, size, in.id)};
        plain.streams[in.id].enqueued++;
    }

    FreedRanges comes_after_everybody(uint64_t address, uint64_t size, uint64_t id) {
        auto next = live_.lower_bound(address);
        CHECK(next == live_.end() || next->first >= address + size);
        CHECK(next == live_.begin() || std::prev(next)->first + std::prev(next)->second.size <= address);
        FreedRanges before;
        freed_.take(address, whole_units(address + size), &before);
        const fake::Stream& in = plain.streams.at(id);
        before.each([&](const Freed& freed) {
            auto after = in.after.find(freed.stream);
            bool ordered = after != in.after.end() && after->second >= freed.position;
            CHECK(freed.stream == id || ordered || plain.streams.at(freed.stream).done >= freed.position);
        });
        return before;
    }

    // Its own work is over; that of those before it need not be.
    void give_at_once(uint64_t address) {
        must_free_at_once(address);
        freed_.add(live_.at(address).before);
        live_.erase(address);
    }

    void give(uint64_t address) {
        const StreamName& in = any_stream();
        must_free(address, in);
        uint64_t size = live_.at(address).size;
        freed_.add(address, whole_units(address + size), {in.id, plain.streams[in.id].enqueued});
        live_.erase(address);
    }

    // As far as nothing it waits for is still to be done.
    void advance() {
        fake::Stream& some = plain.streams[any_stream().id];
        for (const auto& [other, position] : some.after)
            if (plain.streams.at(other).done < position) return;
        some.done += some.done < some.enqueued ? 1 + below(some.enqueued - some.done) : 0;
    }

    void replace_stream() {
        StreamName& old = names_[below(3)];
        destroy_stream(old.id);
        old = stream(next_id_++, old.handle);
    }

    std::mt19937_64 random_;
    std::vector<StreamName> names_;
    uint64_t next_id_ = 1000;
    std::map<uint64_t, Live> live_;
    FreedRanges freed_;
};

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
    a_stream_that_is_destroyed_leaves_its_memory();
    a_context_that_is_destroyed_has_done_its_work();
    a_destroyed_pool_serves_until_all_is_freed();
    a_destroyed_pool_stays_for_who_found_it();
    a_reset_device_has_no_pool_memory();
    a_reset_spares_who_is_just_allocating();
    peers_reach_what_is_there_and_what_comes();
    freed_at_once_it_stays_in_its_stream();
    freed_at_once_it_waits_for_a_stream_that_is_gone();
    freed_at_once_it_is_everybodys_where_nothing_is_left_to_do();
    freed_at_once_it_waits_for_a_stream_of_another_thread();
    for (const char* operation : {"idle", "mark", "passed", "follow"}) a_capture_waits_for_who_asks(operation);
    during_a_capture_a_thread_marks_its_own_stream();
    during_a_capture_others_wait_for_what_was_freed();
    during_a_capture_a_stream_that_goes_is_marked();
    a_stream_that_goes_with_its_capture_is_not_marked();
    a_pool_may_forbid_to_reuse_what_others_freed();
    a_pool_may_forbid_to_wait_for_others();
    a_stream_goes_while_its_pool_is_being_destroyed();
    whoever_lets_go_of_a_segment_holds_no_lock();
    for (unsigned seed = 1; seed <= kSchedules; seed++) Schedule(seed).run();
    return 0;
}
