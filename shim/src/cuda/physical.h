// SPDX-License-Identifier: Apache-2.0
//
// Physical memory that can be handed over: made exportable, released only after everyone else let go.
#ifndef GCR_CUDA_PHYSICAL_H
#define GCR_CUDA_PHYSICAL_H

#include "cuda/state.h"

namespace gcr {
namespace cuda {

struct Physical {
    CUmemGenericAllocationHandle real;
    bool exportable;
};

// cuMemCreate, exportable where the driver agrees, else as asked. Out of memory while exports exist: everyone lets go,
// one more try. In flight, no lock held.
CUresult create_physical(uint64_t size, const CUmemAllocationProp& asked, unsigned long long flags, Physical* made);

// Gives physical memory back once neither the program nor a mapping needs it. `handle` is dying and out of the table;
// it is gone afterwards. An exported one: the daemon is told first. In flight, no lock held.
CUresult destroy_physical(Handle* handle);

// Under state.lock: takes the handle out of the table when nothing needs it any more. True: destroy it, unlocked.
bool retire_if_unused(Handle* handle);

}  // namespace cuda
}  // namespace gcr

#endif  // GCR_CUDA_PHYSICAL_H
