// SPDX-License-Identifier: Apache-2.0
//
// Peers: which owners' devices reach another owner's memory, now and when more of it is allocated.
#ifndef GCR_DEVICE_PEERS_H
#define GCR_DEVICE_PEERS_H

#include "device/state.h"

namespace gcr {
namespace device {

// After the driver agreed. In flight, no lock held; `owner` does not go meanwhile.
void add_peer(State& state, Owner* accessor, Owner* owner);
void remove_peer(State& state, Owner* accessor, Owner* owner);
void forget_peers_of(State& state, const Owner* owner);  // it is gone, either way round

void apply_access(State& state, Owner* owner);  // to what is there, after accessors_of() changed
uint32_t accessors_of(const State& state, const Owner* owner);  // under state.lock: device mask, its own included

}  // namespace device
}  // namespace gcr

#endif  // GCR_DEVICE_PEERS_H
