// SPDX-License-Identifier: Apache-2.0
#include "acl/vendor.h"

#include <string.h>

#include "acl/contexts.h"
#include "acl/snapshot.h"
#include "acl/streams.h"
#include "core/gate.h"

namespace gcr {
namespace acl {
namespace {

enum Simulated : uint32_t { kUnknown, kNo, kYes };
std::atomic<uint32_t> known_simulated{kUnknown};

// aclrtGetSocName answers with text, so it is left alone and has no slot of its own in real.h.
void learn_name() {
    auto ask = reinterpret_cast<const char* (*)()>(hooks::original(hooks::k_aclrtGetSocName));
    const char* name = ask == nullptr ? nullptr : ask();
    if (name != nullptr) known_simulated.store(strstr(name, "SIMULATED") != nullptr ? kYes : kNo);
}

// Callbacks of the program, and the runtime's own calls of its exports, go straight on while a snapshot is made.
void enter_thread() {
    stand_aside();
    if (known_simulated.load() == kUnknown) learn_name();
}

bool simulated() {
    return known_simulated.load() == kYes;
}

uint32_t count_contexts() {
    Guard guard(state.lock);
    return static_cast<uint32_t>(state.contexts.size());
}

void reset_after_fork() {
    state.contexts.clear();
    for (auto& owner : state.owners) owner.store(nullptr, std::memory_order_relaxed);
    for (uint32_t& sets : state.sets) sets = 0;
}

const VendorOps kOps = {&state,        simulated, enter_thread,     count_contexts, synchronize_devices,
                        stuck_streams, nullptr,   reset_after_fork, snapshot,       snapshot_phase};

}  // namespace

const VendorOps& vendor_ops() {
    return kOps;
}

}  // namespace acl
}  // namespace gcr
