// SPDX-License-Identifier: Apache-2.0
#ifndef GCR_HIP_FREE_H
#define GCR_HIP_FREE_H

#include "hip/state.h"

namespace gcr {
namespace hip {

// hipFree, which the runtime lets free whatever it allocated: device, managed, stream-ordered and host memory.
hipError_t free_device(void* pointer);

}  // namespace hip
}  // namespace gcr

#endif  // GCR_HIP_FREE_H
