// SPDX-License-Identifier: Apache-2.0
//
// Plain allocations (cuMemAlloc and its kin) as mapped physical memory. Large ones have a region of their own; small ones
// share slabs, one set an owner, so that an owner takes its memory with it.
#ifndef GCR_DEVICE_ALLOCATIONS_H
#define GCR_DEVICE_ALLOCATIONS_H

#include "device/state.h"

namespace gcr {
namespace device {

// All in flight, no lock held.
Result allocate(State& state, Owner* owner, uint64_t size, uint64_t* address);
// Of memory of another kind than plain(), in a region of its own. `granularity`: bytes, of that kind.
Result allocate_as(State& state, Owner* owner, uint64_t size, const Properties& asked, uint64_t granularity,
                   uint64_t* address);

// A free has two halves. take_allocation: no look-up finds it any more, its memory is as it was; null: not one of ours.
// Then one of: free_when_idle(), put_off(), or take_back(), which makes the free not to have happened.
Allocation* take_allocation(State& state, uint64_t address);
void take_back(State& state, Allocation* allocation);
Result free_when_idle(State& state, Allocation* allocation);  // waits for its owner's work; failed: taken back
// A capture in progress forbids waiting for its owner: the memory is quarantined until it ended.
void put_off(State& state, Allocation* allocation);
bool give_back_put_off(State& state);  // true: there were some, and no capture forbade it

bool give_back_spares(State& state);  // empty slabs, frees put off, what pools keep; true: there were some
void free_all_of(State& state, Owner* owner);  // the driver destroyed it
void drop_allocation_records(State& state, const Owner* owner);  // under state.lock; their memory is the caller's

}  // namespace device
}  // namespace gcr

#endif  // GCR_DEVICE_ALLOCATIONS_H
