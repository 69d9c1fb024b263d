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
void forget_captures_of(CUcontext context);
void forget_captures_on(CUstream stream);
void forget_captures_after_fork();
Lock& capture_lock();                    // for fork alone

}  // namespace cuda
}  // namespace gcr

#endif  // GCR_CUDA_CAPTURES_H
