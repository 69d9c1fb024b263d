// SPDX-License-Identifier: Apache-2.0
#ifndef GCR_CUDA_CONTEXTS_H
#define GCR_CUDA_CONTEXTS_H

#include "cuda/state.h"

namespace gcr {
namespace cuda {

// The calling thread's, recorded on first sight (a program may make one through calls we do not answer); null: none.
Context* current_context();

// ---- what is answered while a job is suspended (current.cpp)
void forget_current();  // the calling thread may have another one current
void forget_primary(CUdevice device);  // the state of its primary context may have changed
bool known_device(CUdevice* device);  // the calling thread's, if that can be told without a driver call
void destroy_discarded();  // events that the program gave up meanwhile; in flight
void reset_discarded_after_fork();

size_t pitch_of(size_t width, unsigned int element_bytes);  // as the driver would choose it; 0: could not be learnt

}  // namespace cuda
}  // namespace gcr

#endif  // GCR_CUDA_CONTEXTS_H
