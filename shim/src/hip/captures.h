// SPDX-License-Identifier: Apache-2.0
//
// Stream captures in progress: they delay the gate, and forbid calls that would disturb them.
#ifndef GCR_HIP_CAPTURES_H
#define GCR_HIP_CAPTURES_H

#include "hip/state.h"

namespace gcr {
namespace hip {

uint32_t captures_in_progress();    // no lock, no call of the runtime
bool capture_forbids_allocation();  // in the calling thread, by its capture mode and everybody's captures
bool is_capturing(hipStream_t stream, bool per_thread);

}  // namespace hip
}  // namespace gcr

#endif  // GCR_HIP_CAPTURES_H
