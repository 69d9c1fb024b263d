// SPDX-License-Identifier: Apache-2.0
//
// The ACL half's State: what device::State keeps, and the contexts and streams beside it. A device owns its memory:
// what a program allocates lives until it resets the device, whichever context was current.
#ifndef GCR_ACL_STATE_H
#define GCR_ACL_STATE_H

#include "abi/acl.h"
#include "core/vendor.h"
#include "device/state.h"
#include "hooks/acl_real.h"

namespace gcr {
namespace acl {

using namespace acl_abi;

using device::Allocation;
using device::Handle;
using device::kCovered;
using device::kMaxDevices;
using device::make;
using device::Mapping;
using device::Owner;
using device::Properties;

// A context of the program, its default ones included. Our threads work with memory of a device through one of them.
struct Context {
    aclrtContext handle;
    int device;
    bool of_the_device;  // the one that aclrtSetDevice makes; the program does not destroy it
    std::atomic<uint32_t> pins;  // our own threads working with it; it does not go meanwhile
};

struct State : device::State {
    using device::State::State;
    Array<Context*> contexts;
    std::atomic<Owner*> owners[kMaxDevices] = {};  // by ordinal; made at the first use, never destroyed
    uint32_t sets[kMaxDevices] = {};  // aclrtSetDevice not yet undone by aclrtResetDevice
};

extern State state;

inline uint64_t key_of(const void* pointer) {
    return reinterpret_cast<uint64_t>(pointer);
}
inline void* pointer_at(uint64_t address) {
    return reinterpret_cast<void*>(address);
}

}  // namespace acl
}  // namespace gcr

#endif  // GCR_ACL_STATE_H
