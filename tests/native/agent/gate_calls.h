// SPDX-License-Identifier: Apache-2.0
//
// Calls through the gate that are counted, and the wait for those inside.
#ifndef GCR_TEST_GATE_CALLS_H
#define GCR_TEST_GATE_CALLS_H

#include <atomic>

#include "check.h"
#include "core/gate.h"
#include "core/sys.h"

namespace gate_calls {

inline std::atomic<int> inside{0};
inline std::atomic<uint64_t> calls{0};

inline void one_call() {
    gcr::GateEntry in_flight;
    inside++;
    calls++;
    inside--;
}

inline void drain() {
    gcr::Deadline deadline(20000);
    while (gcr::calls_in_flight() > 0) CHECK(!deadline.passed());
}

}  // namespace gate_calls

#endif
