// SPDX-License-Identifier: Apache-2.0
//
// Stream captures in progress: they delay the gate, and forbid calls that would disturb them.
#ifndef GCR_HIP_CAPTURES_H
#define GCR_HIP_CAPTURES_H

#include "hip/state.h"

namespace gcr {
namespace hip {

uint32_t captures_in_progress();    // no lock, no call of the runtime
bool capture_forbids_allocation();  // in the calling thread, by its capture mode and the captures of all threads
bool is_capturing(hipStream_t stream, bool per_thread);
// It captures, or the runtime would not say: a call for it is the runtime's. The legacy stream while it would depend on one.
bool may_capture(hipStream_t stream);

// The calling thread's mode: what we do for a call that captures allow must not disturb one.
class RelaxedMode {
  public:
    RelaxedMode();
    ~RelaxedMode();
    RelaxedMode(const RelaxedMode&) = delete;
    RelaxedMode& operator=(const RelaxedMode&) = delete;

  private:
    hipStreamCaptureMode mode_ = hipStreamCaptureModeRelaxed;  // then the one before
    bool changed_;
};

}  // namespace hip
}  // namespace gcr

#endif  // GCR_HIP_CAPTURES_H
