// SPDX-License-Identifier: Apache-2.0
//
// Streams by name, and the events by which pools know how far one got.
#ifndef GCR_CUDA_STREAM_ORDER_H
#define GCR_CUDA_STREAM_ORDER_H

#include "cuda/state.h"

namespace gcr {
namespace cuda {

using device::StreamName;

bool streams_have_ids();  // the driver tells them apart for good (12.0); else pools are its own
bool name_stream(CUstream stream, bool per_thread, StreamName* name);  // false: no such stream

// device/ops.h
bool capturing(const StreamName& stream);
bool idle(const StreamName& stream);
bool mark(const StreamName& stream, uint64_t* event);
bool passed(const StreamName& stream, uint64_t event);
bool follow(const StreamName& stream, const StreamName& other, uint64_t event);
void forget_event(const StreamName& stream, uint64_t event);

}  // namespace cuda
}  // namespace gcr

#endif  // GCR_CUDA_STREAM_ORDER_H
