// SPDX-License-Identifier: Apache-2.0
//
// Carried: what the driver keeps for the program and we do not hand over, counted by reason for as long as it lives, at
// most as long as the context that was current when it was made.
#ifndef GCR_CUDA_CARRIED_H
#define GCR_CUDA_CARRIED_H

#include "cuda/state.h"
#include "hooks/cuda_real.h"

namespace gcr {
namespace cuda {

inline CUcontext context_now() {
    CUcontext context = nullptr;
    real::cuCtxGetCurrent(&context);
    return context;
}

inline void carry(uint64_t key, uint64_t bytes, Reason reason) {
    state.carried.add(key, {bytes, reason, context_now()});
}
inline void carry(const void* key, uint64_t bytes, Reason reason) {
    carry(reinterpret_cast<uint64_t>(key), bytes, reason);
}

// Forgets before the driver frees, remembers again when it would not.
template <typename Free>
CUresult free_carried(uint64_t key, Free free_call) {
    return state.carried.free_with(key, [&] { return free_call(key); });
}

}  // namespace cuda
}  // namespace gcr

#endif  // GCR_CUDA_CARRIED_H
