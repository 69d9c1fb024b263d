// SPDX-License-Identifier: Apache-2.0
//
// Carried: what the driver keeps for the program and we do not hand over, counted by reason for as long as it lives.
// Keys are whatever names the thing: a device pointer, an array, a pool. All are addresses of one process, none is two.
#ifndef GCR_CUDA_CARRIED_H
#define GCR_CUDA_CARRIED_H

#include "cuda/state.h"

namespace gcr {
namespace cuda {

void carry(uint64_t key, uint64_t bytes, Reason reason);
void carry(const void* key, uint64_t bytes, Reason reason);

struct CarriedThing {
    bool known;
    uint64_t bytes;
    Reason reason;
    CUcontext context;
};
CarriedThing stop_carrying(uint64_t key);
void carry_again(uint64_t key, const CarriedThing& thing);
void forget_carried_of(CUcontext context);  // the driver destroyed it
uint64_t carried_bytes(uint64_t key);
void forget_carried_after_fork();
Lock& carried_lock();  // for fork alone

// Forgets before the driver frees, remembers again when it would not.
template <typename Free>
CUresult free_carried(uint64_t key, Free free_call) {
    CarriedThing thing = stop_carrying(key);
    CUresult result = free_call(key);
    if (result != CUDA_SUCCESS && thing.known) carry_again(key, thing);
    return result;
}

}  // namespace cuda
}  // namespace gcr

#endif  // GCR_CUDA_CARRIED_H
