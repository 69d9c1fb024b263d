// SPDX-License-Identifier: Apache-2.0
//
// Plain memory that another process may open, and another process's that is open here: a vendor's legacy interprocess
// handles.
#ifndef GCR_DEVICE_LENT_H
#define GCR_DEVICE_LENT_H

#include "core/lending.h"
#include "device/state.h"

namespace gcr {
namespace device {

// ---- all in flight, no lock held

// A blob for the plain allocation that contains `address`. False: there is none of ours, or it cannot leave as a descriptor.
bool offer(State& state, uint64_t address, Blob* blob);

// Once more the same address for what is open already, as its owner sees it.
Result open(State& state, Owner* owner, const Blob& blob, uint64_t* address);

// Waits for its owner's work when it was the last time. False: not an address that open() gave.
bool close(State& state, uint64_t address, Result* result);

}  // namespace device
}  // namespace gcr

#endif  // GCR_DEVICE_LENT_H
