// SPDX-License-Identifier: Apache-2.0
//
// Pinned host memory of the program: the driver keeps it, and it makes a checkpoint slower; STATUS says how much.
#ifndef GCR_CUDA_HOST_H
#define GCR_CUDA_HOST_H

#include "cuda/state.h"

namespace gcr {
namespace cuda {

uint64_t pinned_bytes();
void forget_pinned_of(CUcontext context);
void forget_pinned_after_fork();
Lock& pinned_lock();  // for fork alone

}  // namespace cuda
}  // namespace gcr

#endif  // GCR_CUDA_HOST_H
