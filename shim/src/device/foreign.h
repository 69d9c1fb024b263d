// SPDX-License-Identifier: Apache-2.0
//
// Physical memory of other processes that the program imported by a ticket. It is mapped and released like its own; its
// owner hands its bytes over.
#ifndef GCR_DEVICE_FOREIGN_H
#define GCR_DEVICE_FOREIGN_H

#include "core/lending.h"
#include "device/state.h"

namespace gcr {
namespace device {

// What the driver says of memory that was imported.
using AskProperties = Properties (*)(uint64_t real);

// Gives the program an id for the memory that a ticket's blob names: the same one again for what it holds already. In
// flight, no lock held.
Result redeem(State& state, const Blob& blob, AskProperties ask, uint64_t* id);

}  // namespace device
}  // namespace gcr

#endif  // GCR_DEVICE_FOREIGN_H
