// SPDX-License-Identifier: Apache-2.0
#include "device/peers.h"

#include "device/devices.h"

namespace gcr {
namespace device {
namespace {

template <typename Matches>
void remove(State& state, Matches matches) {
    Guard guard(state.lock);
    for (size_t i = state.peers.size(); i-- > 0;)
        if (matches(state.peers[i])) state.peers.swap_out(i);
    state.peer_changes++;
}

}  // namespace

// A region that another thread frees meanwhile just fails here; its successor reads the peers itself.
void apply_access(State& state, Owner* owner) {
    for (uint64_t at = 0;;) {
        uint64_t size;
        uint32_t wanted, before;
        {
            Guard guard(state.lock);
            Mapping* region = state.mappings.at_least(at);
            while (region != nullptr && region->owner != owner) region = state.mappings.after(region);
            if (region == nullptr) return;
            wanted = accessors_of(state, owner);
            before = region->read;
            region->read = region->write = wanted;
            at = region->key;
            size = region->size;
        }
        state.ops->set_access(at, size, wanted & ~before, wanted & ~before);
        state.ops->drop_access(at, size, before & ~wanted);
        at += size;
    }
}

void add_peer(State& state, Owner* accessor, Owner* owner) {
    {
        Guard guard(state.lock);
        state.peers.push({accessor, owner});
        state.peer_changes++;
    }
    apply_access(state, owner);
}

void remove_peer(State& state, Owner* accessor, Owner* owner) {
    remove(state, [&](const Peer& peer) { return peer.owner == owner && peer.accessor == accessor; });
    apply_access(state, owner);
}

void forget_peers_of(State& state, const Owner* owner) {
    remove(state, [&](const Peer& peer) { return peer.owner == owner || peer.accessor == owner; });
}

uint32_t accessors_of(const State& state, const Owner* owner) {
    uint32_t devices = device_bit(owner->device) | owner->admitted;
    for (const Peer& peer : state.peers)
        if (peer.owner == owner) devices |= device_bit(peer.accessor->device);
    return devices;
}

}  // namespace device
}  // namespace gcr
