// SPDX-License-Identifier: Apache-2.0
//
// Stream captures in progress: they delay the gate, and forbid calls that would disturb them.
#ifndef GCR_CUDA_CAPTURES_H
#define GCR_CUDA_CAPTURES_H

#include "cuda/state.h"

namespace gcr {
namespace cuda {

uint32_t captures_in_progress();         // no lock, no driver call
bool capture_forbids_allocation();  // in the calling thread, by its capture mode and the captures of all threads
bool is_capturing(CUstream stream, bool per_thread);
// It captures, or the driver would not say: a call for it is the driver's. The legacy stream while it would depend on one.
bool may_capture(CUstream stream, bool per_thread);

// The calling thread's mode: what we do for a call that captures allow must not disturb one.
class RelaxedMode {
  public:
    RelaxedMode();
    ~RelaxedMode();
    RelaxedMode(const RelaxedMode&) = delete;
    RelaxedMode& operator=(const RelaxedMode&) = delete;

  private:
    CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;  // then the one before
    bool changed_;
};

}  // namespace cuda
}  // namespace gcr

#endif  // GCR_CUDA_CAPTURES_H
