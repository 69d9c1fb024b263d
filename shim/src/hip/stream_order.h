// SPDX-License-Identifier: Apache-2.0
//
// Streams by name, and the events by which pools know how far one got.
#ifndef GCR_HIP_STREAM_ORDER_H
#define GCR_HIP_STREAM_ORDER_H

#include "hip/state.h"

namespace gcr {
namespace hip {

using device::StreamName;

bool streams_have_ids();  // the runtime tells them apart for good (7.1); else pools are its own
bool name_stream(hipStream_t stream, StreamName* name);  // false: no such stream

// device/ops.h
bool capturing(const StreamName& stream);
bool idle(const StreamName& stream);
bool mark(const StreamName& stream, uint64_t* event);
bool passed(const StreamName& stream, uint64_t event);
bool follow(const StreamName& stream, const StreamName& other, uint64_t event);
void forget_event(const StreamName& stream, uint64_t event);

}  // namespace hip
}  // namespace gcr

#endif  // GCR_HIP_STREAM_ORDER_H
