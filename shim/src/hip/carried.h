// SPDX-License-Identifier: Apache-2.0
//
// Carried: what the runtime keeps for the program and we do not hand over, counted by reason for as long as it lives.
#ifndef GCR_HIP_CARRIED_H
#define GCR_HIP_CARRIED_H

#include "hip/devices.h"

namespace gcr {
namespace hip {

inline hipError_t carry(hipError_t result, const void* key, uint64_t bytes, Reason reason) {
    if (result == hipSuccess) state.carried.add(key_of(key), {bytes, reason, current_owner()});
    return result;
}

// Forgets before the runtime frees, remembers again when it would not.
template <typename Free>
hipError_t free_carried(const void* key, Free free_call) {
    return state.carried.free_with(key_of(key), free_call);
}

}  // namespace hip
}  // namespace gcr

#endif  // GCR_HIP_CARRIED_H
