// SPDX-License-Identifier: Apache-2.0
//
// Copies by the agent itself, for processes whose bytes no worker can fetch: the one exception to "no copies in the
// target". The agent's thread, gate closed, devices idle.
#ifndef GCR_DEVICE_COPYOUT_H
#define GCR_DEVICE_COPYOUT_H

#include "core/vendor.h"
#include "device/state.h"

namespace gcr {
namespace device {

// Bytes between a handle that is here and host memory; done when it returns. Whatever of the handle the program has
// mapped, and which devices may read it there, makes no difference.
Failure copy_piece(State& state, Direction direction, uint64_t id, uint64_t offset, void* host, uint64_t size);

}  // namespace device
}  // namespace gcr

#endif  // GCR_DEVICE_COPYOUT_H
