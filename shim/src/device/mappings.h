// SPDX-License-Identifier: Apache-2.0
//
// The program's own mappings: where it mapped which handle, and which devices may use it. Plain allocations lie in
// mappings as well; those are no business of the program's calls.
#ifndef GCR_DEVICE_MAPPINGS_H
#define GCR_DEVICE_MAPPINGS_H

#include "device/state.h"

namespace gcr {
namespace device {

// All in flight, no lock held.

// The driver mapped it. Failed: it is unmapped again, since no restore would bring it back.
Result record_mapping(State& state, Handle* handle, uint64_t address, uint64_t size, uint64_t offset);

// The driver's unmap, and everything that follows. invalid_value where the range touches a plain allocation.
Result unmap_range(State& state, uint64_t address, uint64_t size);

bool touches_internal(State& state, uint64_t address, uint64_t size);

// The driver gave (or took) access.
void record_access(State& state, uint64_t address, uint64_t size, int device, bool may_read, bool may_write);
// Access for anything but a device cannot be told to the daemon: such memory stays with the driver.
void uncover_range(State& state, uint64_t address, uint64_t size, Reason reason);

// One more reference to what is mapped there. False: nothing of ours. `id` 0: a plain allocation, which has no handle
// to tell of. Null: nothing is retained.
bool retain_at(State& state, uint64_t address, uint64_t* id);

}  // namespace device
}  // namespace gcr

#endif  // GCR_DEVICE_MAPPINGS_H
