// SPDX-License-Identifier: Apache-2.0
//
// Pools of the plain driver as a program uses them: streams, allocations and frees, and the check that nothing is left.
#ifndef GCR_TEST_POOL_CALLS_H
#define GCR_TEST_POOL_CALLS_H

#include "check.h"
#include "device/allocations.h"
#include "device/pools.h"
#include "fake_driver.h"

namespace pool_calls {

using fake::kNoRoom;
using fake::MiB;
using fake::plain;
using fake::plain_memory;
using gcr::device::Pool;
using gcr::device::StreamName;

constexpr uint64_t kContext = 77;

inline StreamName stream(uint64_t id, uint64_t handle = 0, bool of_thread = false) {
    plain.streams[id];
    return {handle != 0 ? handle : id, kContext, id, of_thread, of_thread};
}

inline Pool* pool(uint64_t key, uint64_t limit = 0) {
    return gcr::device::record_pool(plain_memory, key, {0, limit}).get();
}

inline int32_t allocate(Pool* from, const StreamName& in, uint64_t size, uint64_t* address) {
    plain.calling = in.id;
    return gcr::device::allocate_in_pool(plain_memory, from, in, size, address);
}

inline uint64_t must_allocate(Pool* from, const StreamName& in, uint64_t size) {
    uint64_t address = 0;
    CHECK(allocate(from, in, size, &address) == 0);
    plain.streams[in.id].enqueued++;
    return address;
}

inline void must_free(uint64_t address, const StreamName& in) {
    plain.calling = in.id;
    CHECK(gcr::device::is_in_pool(plain_memory, address));
    CHECK(gcr::device::free_in_stream(plain_memory, address, in));
}

// In no stream's order, as cuMemFree.
inline void must_free_at_once(uint64_t address) {
    plain.calling = 0;
    gcr::device::Allocation* allocation = gcr::device::take_allocation(plain_memory, address);
    CHECK(allocation != nullptr && gcr::device::free_when_idle(plain_memory, allocation) == 0);
}

inline void destroy_stream(const StreamName& gone) {
    uint64_t left = 0;
    if (gcr::device::leave_stream(plain_memory, gone.handle, &left)) CHECK(left == gone.id);
    plain.streams[gone.id].alive = false;
}

inline void all_done() {
    for (auto& [id, each] : plain.streams) each.done = each.enqueued;
}

inline void destroy(uint64_t key) {
    gcr::device::leave_pool(plain_memory, gcr::device::take_pool(plain_memory, key));
}

inline void nothing_is_left() {
    all_done();
    gcr::device::trim_to_thresholds(plain_memory);
    CHECK(plain.physical.empty() && plain.mapped.empty() && plain.reserved.empty());
    CHECK(plain_memory.pools.empty() && plain_memory.destroyed_pools == nullptr);
    CHECK(plain.events.empty());
    plain.streams.clear();
}

inline bool nobody_left(int) {
    return true;
}

}  // namespace pool_calls

#endif
