// SPDX-License-Identifier: Apache-2.0
//
// Physical memory that can be handed over: made exportable where descriptors exist, released only after all other
// holders let go.
#ifndef GCR_DEVICE_PHYSICAL_H
#define GCR_DEVICE_PHYSICAL_H

#include "device/state.h"

namespace gcr {
namespace device {

struct Physical {
    uint64_t real;
    bool exportable;  // or its bytes are copied out: ours to care for
};

// The driver's create, exportable where it agrees, else as asked. Out of memory while exports exist: all holders let
// go, one more try. In flight, no lock held.
Result create_physical(State& state, uint64_t size, const Properties& asked, uint64_t flags, Physical* made);

// The same, without asking other holders to let go.
Result create_once(State& state, uint64_t size, const Properties& asked, uint64_t flags, Physical* made);

// Gives physical memory back once neither the program nor a mapping needs it. `handle` is dying and out of the table;
// it is gone afterwards. An exported one: the daemon is told first. In flight, no lock held.
Result destroy_physical(State& state, Handle* handle);

// Under state.lock: takes the handle out of the table when nothing needs it any more. True: destroy it, unlocked.
bool retire_if_unused(State& state, Handle* handle);

}  // namespace device
}  // namespace gcr

#endif  // GCR_DEVICE_PHYSICAL_H
