// SPDX-License-Identifier: Apache-2.0
//
// What the daemon is told of memory that several processes hold (wire::kShared). From the tables alone: no driver call.
#ifndef GCR_DEVICE_SHARED_H
#define GCR_DEVICE_SHARED_H

#include "core/vendor.h"
#include "device/state.h"

namespace gcr {
namespace device {

// Goes on where the page has come to. What has ended holds nothing, and is counted: no loan ends behind a closed gate, so
// that no record is left out there.
void list_shared(State& state, SharedPage* page);

}  // namespace device
}  // namespace gcr

#endif  // GCR_DEVICE_SHARED_H
