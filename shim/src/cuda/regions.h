// SPDX-License-Identifier: Apache-2.0
//
// A region: physical memory of ours at an address of ours, accessible to its owner's device and to every peer.
#ifndef GCR_CUDA_REGIONS_H
#define GCR_CUDA_REGIONS_H

#include "cuda/state.h"

namespace gcr {
namespace cuda {

// In flight, no lock held. The region is recorded, and its access is what the peers of `owner` need at that instant.
CUresult make_region(Context* owner, uint64_t size, bool slab, Mapping** made);

// Under state.lock: forgets the region. Nobody finds it any more; give_region() may now take it down.
void forget_region(Mapping* region);
CUresult give_region(Mapping* region);  // unlocked

}  // namespace cuda
}  // namespace gcr

#endif  // GCR_CUDA_REGIONS_H
