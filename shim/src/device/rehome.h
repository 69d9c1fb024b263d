// SPDX-License-Identifier: Apache-2.0
//
// Rehoming: memory that came back by import cannot be exported again, so without a descriptor of it in other hands it could
// not leave any more. New memory takes its place: same bytes, same addresses, same access. The agent's thread, gate closed,
// devices idle.
#ifndef GCR_DEVICE_REHOME_H
#define GCR_DEVICE_REHOME_H

#include "core/vendor.h"
#include "device/state.h"

namespace gcr {
namespace device {

// Of one handle that is mapped, or only held, by the process; needs room for it once more, for the length of the call.
// One that can be exported is left alone. Failed: every byte is where it was.
Failure rehome(State& state, uint64_t id, Tally* tally);

}  // namespace device
}  // namespace gcr

#endif  // GCR_DEVICE_REHOME_H
