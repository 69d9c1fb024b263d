// SPDX-License-Identifier: Apache-2.0
//
// Driver calls that may never return, by threads of their own: the devices are waited for, and streams are looked at. By
// the agent's thread alone.
#ifndef GCR_CORE_OBSERVING_H
#define GCR_CORE_OBSERVING_H

#include "core/session.h"

namespace gcr {

bool begin_to_synchronize();  // false: the last one has not ended, or no thread could be had
Failure synchronization_result();  // of the last one, which has ended

// Streams that are not idle, into an empty `stuck`. False: a driver that is stuck for the thread that looks, too.
bool observe(Stuck* stuck, uint32_t patience_ms);

}  // namespace gcr

#endif  // GCR_CORE_OBSERVING_H
