// SPDX-License-Identifier: Apache-2.0
//
// Pinned host memory of the program: the runtime keeps it; STATUS says how much.
#include "acl/state.h"
#include "hooks/acl_calls.h"

namespace gcr {
namespace acl {
namespace {

aclError pinned(aclError result, void* const* address, uint64_t bytes) {
    if (result == ACL_SUCCESS) state.pinned.add(key_of(*address), {bytes, kCovered, nullptr});
    return result;
}

// Forgotten before the runtime lets go: the address may be pinned anew at once.
template <typename Free>
aclError unpin(void* address, Free call) {
    return state.pinned.free_with(key_of(address), call);
}

}  // namespace

aclError on_aclrtMallocHost(void** hostPtr, size_t size) {
    return pinned(real::aclrtMallocHost(hostPtr, size), hostPtr, size);
}

aclError on_aclrtMallocHostWithCfg(void** ptr, uint64_t size, aclrtMallocConfig* cfg) {
    return pinned(real::aclrtMallocHostWithCfg(ptr, size, cfg), ptr, size);
}

aclError on_aclrtHostRegister(void* ptr, uint64_t size, int32_t type, void** devPtr) {
    return pinned(real::aclrtHostRegister(ptr, size, type, devPtr), &ptr, size);
}

aclError on_aclrtHostRegisterV2(void* ptr, uint64_t size, uint32_t flag) {
    return pinned(real::aclrtHostRegisterV2(ptr, size, flag), &ptr, size);
}

aclError on_aclrtFreeHost(void* hostPtr) {
    return unpin(hostPtr, [&] { return real::aclrtFreeHost(hostPtr); });
}

aclError on_aclrtFreeHostWithDevSync(void* hostPtr) {
    return unpin(hostPtr, [&] { return real::aclrtFreeHostWithDevSync(hostPtr); });
}

aclError on_aclrtHostUnregister(void* ptr) {
    return unpin(ptr, [&] { return real::aclrtHostUnregister(ptr); });
}

}  // namespace acl
}  // namespace gcr
