// SPDX-License-Identifier: Apache-2.0
//
// The hand-over: physical memory leaves as descriptors, and comes back to the same addresses with the same access.
// The agent's thread. While the gate is closed no other thread changes the tables; exports also run while the program
// does. Steps that a process with several vendors must do for all or for none have their undo beside them.
#ifndef GCR_DEVICE_HANDOVER_H
#define GCR_DEVICE_HANDOVER_H

#include "core/vendor.h"
#include "device/state.h"

namespace gcr {
namespace device {

// ---- while the program runs (exports.cpp). Both append to what is there already, up to its limit.
Failure export_after(State& state, uint64_t after_id, ExportBatch* batch);  // failed: what it appended has left
void mappings_after(State& state, uint64_t address, MappingPage* page);  // from that address on; more: there are more
void end_exports(State& state);

// ---- the gate is closed
void choose_foreign(State& state);  // to be released with what was exported; its owner gives its bytes
bool all_exported(State& state);
// Whether the memory would leave the device, too, and not the process alone.
Failure can_leave(State& state);
Failure unmap_exported(State& state);  // failed: everything is mapped as before
// For a runtime that keeps memory with its address. Failed: remap_exported() is right, and what is at a lost address
// comes by regain() (reservations.h).
Failure give_up_addresses(State& state);
Failure remap_exported(State& state);  // undoes either
void release_exported(State& state, Tally* tally);  // cannot fail, nor be undone

// Takes the descriptors: each is closed, whatever happens. Failed: nothing of this list is kept.
Failure import_handles(State& state, const uint64_t* ids, const int* descriptors, uint32_t count, Tally* tally);
// Instead of an import: new memory of the same kind at the same addresses, which no other process keeps. kNoRoom says
// so.
Failure create_handles(State& state, const uint64_t* ids, uint32_t count, Tally* tally);
void discard_handles(State& state, const uint64_t* ids, uint32_t count);  // undoes either
bool all_imported(State& state);
bool none_imported(State& state);
Failure map_imported(State& state, Tally* tally);
Failure discard_imported(State& state, Tally* tally);  // failed: everything is mapped as before

}  // namespace device
}  // namespace gcr

#endif  // GCR_DEVICE_HANDOVER_H
