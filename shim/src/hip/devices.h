// SPDX-License-Identifier: Apache-2.0
#ifndef GCR_HIP_DEVICES_H
#define GCR_HIP_DEVICES_H

#include "hip/state.h"

namespace gcr {
namespace hip {

Owner* owner_of(int device);  // null: no such device, or no host memory
Owner* current_owner();  // of the calling thread's device, which counts as used from now on; null: it has none

size_t pitch_of(size_t width);  // as the runtime would choose it; 0: could not be learnt

bool layout_is_known();  // the runtime is of 5.4 or newer
bool imports_by_value();  // since 7.1 a descriptor is imported by its value, before by its address

}  // namespace hip
}  // namespace gcr

#endif  // GCR_HIP_DEVICES_H
