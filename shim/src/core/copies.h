// SPDX-License-Identifier: Apache-2.0
//
// Copies: pieces of device memory to and from arena segments, as a COPY_OUT or COPY_IN names them. The agent's thread
// alone, gate closed; nothing is pinned, nothing stays mapped.
#ifndef GCR_CORE_COPIES_H
#define GCR_CORE_COPIES_H

#include "core/vendor.h"

namespace gcr {

// Does the records in order until all are done, one fails, or the request's budget has passed; the first is done in any
// case. `done`: what was moved. The descriptors stay the caller's; a segment is checked before it is touched.
Failure copy_pieces(Direction direction, const wire::CopyRequest& wanted, const uint8_t* records, const int* segments,
                    uint32_t segment_count, Tally* done);

}  // namespace gcr

#endif  // GCR_CORE_COPIES_H
