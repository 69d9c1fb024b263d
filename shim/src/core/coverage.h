// SPDX-License-Identifier: Apache-2.0
//
// Coverage: bytes that cannot be handed over, by reason. Counted from the first call on; read by STATUS.
// Any thread, no lock, no allocation: safe on every path.
#ifndef GCR_CORE_COVERAGE_H
#define GCR_CORE_COVERAGE_H

#include <stdint.h>

#include "gcr/wire.h"

namespace gcr {

using wire::Reason;
using wire::Refuse;

struct Uncovered {
    uint64_t bytes;
    uint64_t count;
};

// What is never dropped stays counted for the life of the process: what a call of a REFUSE symbol made.
void add_uncovered(Reason reason, uint64_t bytes);
void drop_uncovered(Reason reason, uint64_t bytes);
Uncovered uncovered(Reason reason);
Refuse refuse_for(Reason reason);
void reset_coverage();  // in the child of a fork

}  // namespace gcr

#endif  // GCR_CORE_COVERAGE_H
