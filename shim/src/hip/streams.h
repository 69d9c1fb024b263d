// SPDX-License-Identifier: Apache-2.0
#ifndef GCR_HIP_STREAMS_H
#define GCR_HIP_STREAMS_H

#include "hip/state.h"

namespace gcr {
namespace hip {

Failure synchronize_devices();                                       // on a helper thread; may take for ever
uint32_t stuck_streams(wire::StuckRecord* records, uint32_t limit);  // on another helper thread

}  // namespace hip
}  // namespace gcr

#endif  // GCR_HIP_STREAMS_H
