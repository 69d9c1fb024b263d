// SPDX-License-Identifier: Apache-2.0
//
// aclrtMalloc and its kin. What the runtime allocates itself can never be unmapped, so they are served with mapped
// physical memory of the kind that the policy names. What cannot be served so stays the runtime's, and counts as
// uncovered: a snapshot would bring it back with bytes that are not its own.
#include "acl/memory.h"

#include "acl/contexts.h"
#include "acl/streams.h"
#include "device/allocations.h"
#include "device/devices.h"
#include "device/mappings.h"
#include "hooks/acl_calls.h"

namespace gcr {
namespace acl {
namespace {

enum Pages : int32_t {  // aclrtMemMallocPolicy: the lower byte; what is above asks for bandwidth or rights
    kHugeFirst,
    kHugeOnly,
    kNormalOnly,
    kHugeFirstP2p,
    kHugeOnlyP2p,
    kNormalOnlyP2p,
    kHuge1g,
    kHuge1gP2p,
};

aclrtMemAttr kind_of(aclrtMemMallocPolicy policy) {
    switch (policy) {
        case kHugeFirst:
        case kHugeOnly:
        case kNormalOnly:
            return ACL_HBM_MEM_HUGE;
        case kHugeFirstP2p:
        case kHugeOnlyP2p:
        case kNormalOnlyP2p:
            return ACL_HBM_MEM_P2P_HUGE;
        case kHuge1g:
            return ACL_HBM_MEM_HUGE1G;
        case kHuge1gP2p:
            return ACL_HBM_MEM_P2P_HUGE1G;
        default:
            return 0;
    }
}

bool allocate_ours(Owner* owner, size_t size, aclrtMemAttr kind, void** out) {
    if (kind == 0 || !device::facts_of(state, owner->device).shareable) return false;
    uint64_t address = 0;
    if (kind == ACL_HBM_MEM_HUGE) {
        if (device::allocate(state, owner, size, &address) != ACL_SUCCESS) return false;
    } else {
        uint64_t granularity = granularity_of(owner->device, kind);
        Properties asked = Properties::of(memory_of_kind(owner->device, kind));
        if (granularity == 0) return false;
        if (device::allocate_as(state, owner, size, asked, granularity, &address) != ACL_SUCCESS) return false;
    }
    *out = pointer_at(address);
    return true;
}

// The runtime's own allocator: what it makes stays where it is.
template <typename Bare>
aclError allocate_bare(void** out, size_t size, Bare bare) {
    aclError result = bare();
    if (result == ACL_SUCCESS) state.carried.add(key_of(*out), {size, wire::kReasonUnexportable, nullptr});
    return result;
}

template <typename Bare>
aclError allocate(void** out, size_t size, aclrtMemMallocPolicy policy, Bare bare) {
    Owner* owner = out == nullptr || size == 0 ? nullptr : current_owner();
    if (owner == nullptr) return bare();  // the runtime's own error
    if (state.any_put_off.load(std::memory_order_relaxed)) device::give_back_put_off(state);
    if (allocate_ours(owner, size, kind_of(policy), out)) return ACL_SUCCESS;
    return allocate_bare(out, size, bare);  // never out of memory because of us
}

template <typename Bare>
aclError release(void* pointer, Bare bare) {
    // forgotten before anything is given back: another thread may be given this address as soon as the runtime has it
    Allocation* allocation = pointer == nullptr ? nullptr : device::take_allocation(state, key_of(pointer));
    if (allocation == nullptr) return state.carried.free_with(key_of(pointer), bare);
    if (captures_in_progress() == 0) return device::free_when_idle(state, allocation);
    device::put_off(state, allocation);
    return ACL_SUCCESS;
}

}  // namespace

aclrtPhysicalMemProp memory_of_kind(int device, aclrtMemAttr kind) {
    aclrtPhysicalMemProp prop{};
    prop.handleType = ACL_MEM_HANDLE_TYPE_NONE;
    prop.allocationType = ACL_MEM_ALLOCATION_TYPE_PINNED;
    prop.memAttr = kind;
    prop.location = {static_cast<uint32_t>(device), ACL_MEM_LOCATION_TYPE_DEVICE};
    return prop;
}

uint64_t granularity_of(int device, aclrtMemAttr kind) {
    aclrtPhysicalMemProp prop = memory_of_kind(device, kind);
    size_t granularity = 0;
    aclError asked = real::aclrtMemGetAllocationGranularity(&prop, ACL_RT_MEM_ALLOC_GRANULARITY_MINIMUM, &granularity);
    return asked == ACL_SUCCESS ? granularity : 0;
}

aclError on_aclrtMalloc(void** devPtr, size_t size, aclrtMemMallocPolicy policy) {
    return allocate(devPtr, size, policy, [&] { return real::aclrtMalloc(devPtr, size, policy); });
}

aclError on_aclrtMallocAlign32(void** devPtr, size_t size, aclrtMemMallocPolicy policy) {
    return allocate(devPtr, size, policy, [&] { return real::aclrtMallocAlign32(devPtr, size, policy); });
}

aclError on_aclrtMallocCached(void** devPtr, size_t size, aclrtMemMallocPolicy policy) {
    return allocate(devPtr, size, policy, [&] { return real::aclrtMallocCached(devPtr, size, policy); });
}

aclError on_aclrtMallocWithCfg(void** devPtr, size_t size, aclrtMemMallocPolicy policy, aclrtMallocConfig* cfg) {
    auto bare = [&] { return real::aclrtMallocWithCfg(devPtr, size, policy, cfg); };
    if (cfg == nullptr) return allocate(devPtr, size, policy, bare);
    return allocate_bare(devPtr, size, bare);
}

aclError on_aclrtMallocForTaskScheduler(void** devPtr, size_t size, aclrtMemMallocPolicy policy,
                                        aclrtMallocConfig* cfg) {
    return allocate_bare(devPtr, size, [&] { return real::aclrtMallocForTaskScheduler(devPtr, size, policy, cfg); });
}

aclError on_aclrtFree(void* devPtr) {
    return release(devPtr, [&] { return real::aclrtFree(devPtr); });
}

aclError on_aclrtFreeWithDevSync(void* devPtr) {
    return release(devPtr, [&] { return real::aclrtFreeWithDevSync(devPtr); });
}

aclError on_aclrtMemPoolMallocAsync(void** ptr, size_t size, void* memPool, aclrtStream stream) {
    aclError result = real::aclrtMemPoolMallocAsync(ptr, size, memPool, stream);
    if (result == ACL_SUCCESS) state.carried.add(key_of(*ptr), {size, wire::kReasonPool, nullptr});
    return result;
}

aclError on_aclrtMemPoolFreeAsync(void* ptr, aclrtStream stream) {
    return state.carried.free_with(key_of(ptr), [&] { return real::aclrtMemPoolFreeAsync(ptr, stream); });
}

// Room of ours that is not allocated right now has no owner.
aclError on_aclrtMemGetAddressRange(void* ptr, void** pbase, size_t* psize) {
    {
        Guard guard(state.lock);
        const Allocation* allocation = device::allocation_at(state, key_of(ptr));
        const Mapping* mapping = device::mapping_at(state, key_of(ptr));
        if (allocation == nullptr && mapping != nullptr && mapping->owner != nullptr) return ACL_ERROR_RT_PARAM_INVALID;
        if (allocation != nullptr) {
            if (pbase != nullptr) *pbase = pointer_at(allocation->key);
            if (psize != nullptr) *psize = allocation->size;
            return ACL_SUCCESS;
        }
    }
    return real::aclrtMemGetAddressRange(ptr, pbase, psize);
}

}  // namespace acl
}  // namespace gcr
