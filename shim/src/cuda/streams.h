// SPDX-License-Identifier: Apache-2.0
#ifndef GCR_CUDA_STREAMS_H
#define GCR_CUDA_STREAMS_H

#include "cuda/state.h"

namespace gcr {
namespace cuda {

Failure synchronize_contexts();                                     // on a helper thread; may take for ever
uint32_t stuck_streams(wire::StuckRecord* records, uint32_t limit);  // on another helper thread

}  // namespace cuda
}  // namespace gcr

#endif  // GCR_CUDA_STREAMS_H
