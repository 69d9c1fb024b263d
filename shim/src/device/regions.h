// SPDX-License-Identifier: Apache-2.0
//
// A region: physical memory of ours at an address of ours, accessible to its owner's device and to every peer.
#ifndef GCR_DEVICE_REGIONS_H
#define GCR_DEVICE_REGIONS_H

#include "device/state.h"

namespace gcr {
namespace device {

// In flight, no lock held. The region is recorded, and its access is what the peers of `owner` need at that instant.
Result make_region(State& state, Owner* owner, uint64_t size, bool slab, Mapping** made);
// The same, of memory of another kind than plain().
Result make_region_of(State& state, Owner* owner, const Properties& asked, uint64_t size, bool slab, Mapping** made);

// Physical memory that is there. `reason`: kCovered, or why it is not handed over. `foreign`: as in Handle.
struct Content {
    uint64_t real;
    const Properties& asked;
    Reason reason;
    const Blob* foreign;
};

// The same over it. Failed: it is as it was.
Result make_region_over(State& state, Owner* owner, const Content& content, uint64_t size, bool slab, Mapping** made);

// Under state.lock: forgets the region. No look-up finds it any more; give_region() may now take it down.
void forget_region(State& state, Mapping* region);
Result give_region(State& state, Mapping* region);  // unlocked

}  // namespace device
}  // namespace gcr

#endif  // GCR_DEVICE_REGIONS_H
