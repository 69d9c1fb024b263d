// SPDX-License-Identifier: Apache-2.0
//
// Stream captures in progress: they delay the gate, and forbid calls that would disturb them.
#ifndef GCR_CUDA_CAPTURES_H
#define GCR_CUDA_CAPTURES_H

#include "cuda/state.h"

namespace gcr {
namespace cuda {

uint32_t captures_in_progress();         // no lock, no driver call
bool capture_forbids_allocation();       // in the calling thread, by its capture mode and everybody's captures
bool is_capturing(CUstream stream, bool per_thread);

}  // namespace cuda
}  // namespace gcr

#endif  // GCR_CUDA_CAPTURES_H
