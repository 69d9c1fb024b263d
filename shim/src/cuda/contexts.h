// SPDX-License-Identifier: Apache-2.0
#ifndef GCR_CUDA_CONTEXTS_H
#define GCR_CUDA_CONTEXTS_H

#include "cuda/state.h"

namespace gcr {
namespace cuda {

// The calling thread's, recorded on first sight (a program may make one through calls we do not answer); null: none.
Context* current_context();

size_t pitch_of(size_t width, unsigned int element_bytes);  // as the driver would choose it; 0: could not be learnt

}  // namespace cuda
}  // namespace gcr

#endif  // GCR_CUDA_CONTEXTS_H
