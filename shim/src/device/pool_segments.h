// SPDX-License-Identifier: Apache-2.0
//
// The segments of pools. One that goes is first taken out of every table, then given back with no lock held: the daemon
// may have to let go of it, which may take seconds.
#ifndef GCR_DEVICE_POOL_SEGMENTS_H
#define GCR_DEVICE_POOL_SEGMENTS_H

#include "device/pools.h"

namespace gcr {
namespace device {

// A block counts its units in 32 bits, and this is more memory than any device has.
constexpr uint64_t kLargestSegment = 1ull << 40;  // bytes

// Segments on their way back.
class Leaving {
  public:
    explicit Leaving(State& state) : state_(state) {}
    ~Leaving() { give_back(); }
    Leaving(const Leaving&) = delete;
    Leaving& operator=(const Leaving&) = delete;

    void add(Mapping* segment);  // under state.lock
    bool give_back();  // no lock held; true: there were some

  private:
    State& state_;
    Mapping* first_ = nullptr;
};

// No lock held.
Result grow(State& state, Pool* pool, uint64_t size);  // by a segment that has room for so many bytes
bool wait_for_leaving(State& state);  // of other threads; true: there were some

// Under state.settling, no other lock held.
void take_free_segments(State& state, Pool* pool, uint64_t keep, Leaving* leaving);  // down to `keep` bytes

}  // namespace device
}  // namespace gcr

#endif  // GCR_DEVICE_POOL_SEGMENTS_H
