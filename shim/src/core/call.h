// SPDX-License-Identifier: Apache-2.0
//
// A gated call, as far as the gate is told of it: by the slow way in alone.
#ifndef GCR_CORE_CALL_H
#define GCR_CORE_CALL_H

#include <stdint.h>

namespace gcr {

constexpr uint64_t kNoStream = ~uint64_t{0};

struct Call {
    uint64_t function = 0;  // the kernel it launches; 0: none
    uint64_t stream = kNoStream;  // 0: a context's default stream
};

}  // namespace gcr

#endif  // GCR_CORE_CALL_H
