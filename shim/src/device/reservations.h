// SPDX-License-Identifier: Apache-2.0
//
// Reserved addresses, and how they are given up for an instant where released memory leaves with its address alone
// (Release::kReserveAgain). Recorded for drivers that may be so: those with DeviceOps::used.
//
// In that instant another thread may be given the address by the kernel. Then the reservation is `lost`, and what is
// mapped there waits: nothing is released before every address has come back, the gate stays closed, and the agent goes on
// asking for it. No memory is lost by it, and the program runs on when the address is free again.
#ifndef GCR_DEVICE_RESERVATIONS_H
#define GCR_DEVICE_RESERVATIONS_H

#include "core/vendor.h"
#include "device/state.h"

namespace gcr {
namespace device {

// ---- in flight, no lock held. Recorded after the driver reserved, forgotten before the driver is given it back.
Result reserve_recorded(State& state, uint64_t size, uint64_t* address);
Result give_back_recorded(State& state, uint64_t address, uint64_t size);
bool record_reservation(State& state, uint64_t address, uint64_t size);  // false: no host memory
bool forget_reservation(State& state, uint64_t address);  // false: not one of those recorded

// ---- the agent's thread, gate closed
using Leaves = bool (*)(const Handle&);  // is unmapped, and on its way out or gone

// Every address of what leaves can be given up: nothing that stays is reserved together with it.
Failure can_give_up_addresses(State& state, Leaves leaves);
// Gives them up and has them again. Failed: every address that is not lost is as it was, nothing is mapped there.
Failure renew_addresses(State& state, Leaves leaves);
// The same for one handle that is gone. What shares a reservation with memory that is there stays in use until that goes.
void renew_addresses_of(State& state, const Handle& gone);

bool is_lost(const State& state, const Mapping& mapping);
bool reserve_lost(State& state);  // once more; true: none is lost (any more)
bool regain_lost(State& state);  // and maps what is still in this process where it was

}  // namespace device
}  // namespace gcr

#endif  // GCR_DEVICE_RESERVATIONS_H
