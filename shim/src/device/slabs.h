// SPDX-License-Identifier: Apache-2.0
//
// Slabs: regions that small allocations of one owner share, so that an owner takes its memory with it.
#ifndef GCR_DEVICE_SLABS_H
#define GCR_DEVICE_SLABS_H

#include "device/state.h"

namespace gcr {
namespace device {

constexpr uint64_t kSmall = 1ull << 20;  // bytes; up to here: slabs, as CUDA's driver does itself
constexpr uint64_t kSlabUnit = 512;      // bytes; alignment of what a plain allocation returns

// In flight, no lock held.
Result allocate_small(State& state, Owner* owner, uint64_t size, Allocation* allocation);
Result give_to_slab(State& state, const Allocation& allocation);  // already out of the table
bool give_back_empty_slabs(State& state);  // true: there were some

}  // namespace device
}  // namespace gcr

#endif  // GCR_DEVICE_SLABS_H
