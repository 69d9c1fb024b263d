// SPDX-License-Identifier: Apache-2.0
//
// Some runtimes (ROCm 6.4.0, 7.2) keep the memory of what was unmapped and released while its address stays reserved:
// their unmap leaves a reference to the buffer behind. What makes this one let go is found by trying, once, before memory
// first leaves the process. A driver that says nothing of what is in use (DeviceOps::used) is taken to let go.
#ifndef GCR_DEVICE_RELEASE_H
#define GCR_DEVICE_RELEASE_H

#include "device/state.h"

namespace gcr {
namespace device {

// By the agent's thread, gate closed. Without room to try it stays kUnprobed until the next time.
void learn_release(State& state);

// The memory mapped there was unmapped and released. For Release::kMapOver, and where nothing could be tried: it does no
// harm where it is not needed.
void map_over_if_needed(const State& state, const Handle& handle);

constexpr int kNoFile = -1;

// Has an inaccessible mapping of an empty file lie where handed-over memory is to come back, or of none, as before. CRIU
// counts the pages of private memory, be anything there or not: it takes 16 bytes for each, and 5 ms a GiB to fill them.
// Shared memory it does not count. A mapping that cannot be made is left as it is, which costs no more than that time.
void cover_addresses(State& state, int file);

}  // namespace device
}  // namespace gcr

#endif  // GCR_DEVICE_RELEASE_H
