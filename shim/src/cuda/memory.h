// SPDX-License-Identifier: Apache-2.0
//
// cuMemAlloc and its kin as mapped physical memory. Large allocations have their own; small ones share slabs, one set a
// context, so that a context takes its memory with it.
#ifndef GCR_CUDA_MEMORY_H
#define GCR_CUDA_MEMORY_H

#include "cuda/state.h"

namespace gcr {
namespace cuda {

constexpr uint64_t kSmall = 1ull << 20;  // up to here: slabs, as the driver does itself

// In flight, no lock held.
CUresult allocate(Context* owner, uint64_t size, CUdeviceptr* out);
CUresult free_allocation(Allocation* allocation);  // already out of the table, its context idle
bool give_back_spares();  // empty slabs and frees put off; true: there were some
void free_all_of(Context* context);  // the driver destroyed it
CUresult wait_for_context(Context* context);  // until its work is done, as cuMemFree does
void apply_access(Context* owner);  // its peers changed
uint32_t accessors_of(const Context* owner);  // under state.lock: device mask

}  // namespace cuda
}  // namespace gcr

#endif  // GCR_CUDA_MEMORY_H
