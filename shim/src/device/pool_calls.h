// SPDX-License-Identifier: Apache-2.0
//
// The program's calls about a pool, for vendors whose pools have the same numbers (CUDA, HIP). Each goes to the driver
// first, then to the pool of ours. A vendor's `Driver` has the types Pool, Attribute, Access and Result, and the calls.
#ifndef GCR_DEVICE_POOL_CALLS_H
#define GCR_DEVICE_POOL_CALLS_H

#include <initializer_list>

#include "device/devices.h"
#include "device/pools.h"

namespace gcr {
namespace device {

template <class Driver>
struct PoolCalls {
    using Handle = typename Driver::Pool;
    using Answer = typename Driver::Result;

    static uint64_t key_of(Handle pool) { return reinterpret_cast<uint64_t>(pool); }

    static uint32_t policies_of(Handle pool) {
        uint32_t found = 0;
        for (uint32_t policy : {kReuseOpportunistic, kReuseInternal}) {
            int on = 1;
            Driver::get_attribute(pool, policy, &on);
            if (on != 0) found |= policy_bit(policy);
        }
        return found;
    }

    static bool is_default_of(Handle pool, int device) {
        Handle found = nullptr;
        return Driver::default_pool(&found, device) == Driver::kDone && found == pool;
    }

    // None: the driver's to serve. A default pool is recorded when it is first seen.
    static PinnedPool known(State& state, Handle pool) {
        PinnedPool ours = find_pool(state, key_of(pool));
        if (ours) return ours;
        int count = 0;
        Driver::count_devices(&count);
        for (int device = 0; device < count; device++)
            if (is_default_of(pool, device)) return Driver::record(pool, device, 0);
        return {};
    }

    template <typename Destroy>
    static Answer destroy(State& state, Handle pool, Destroy call) {
        Pool* ours = take_pool(state, key_of(pool));
        Answer result = call();
        if (result == Driver::kDone)
            leave_pool(state, ours);
        else
            put_back_pool(state, ours);
        return result;
    }

    static Answer trim_to(State& state, Handle pool, size_t keep) {
        Answer result = Driver::trim_to(pool, keep);
        PinnedPool ours = found_after(state, result, pool);
        if (ours) trim_pool(state, ours.get(), keep);
        return result;
    }

    static Answer get_attribute(State& state, Handle pool, typename Driver::Attribute attribute, void* value) {
        Answer result = Driver::get_attribute(pool, attribute, value);
        PinnedPool ours = found_after(state, result, pool);
        uint64_t more = !ours ? 0 : counted(state, *ours.get(), attribute);
        if (more != 0) *static_cast<uint64_t*>(value) += more;  // the driver counts what it serves itself
        return result;
    }

    static Answer set_attribute(State& state, Handle pool, typename Driver::Attribute attribute, void* value) {
        Answer result = Driver::set_attribute(pool, attribute, value);
        PinnedPool ours = found_after(state, result, pool);
        if (!ours) return result;
        if (attribute == kThreshold) set_threshold(state, key_of(pool), *static_cast<const uint64_t*>(value));
        set_policy(state, ours.get(), attribute, *static_cast<const int*>(value) != 0);
        reset_most(state, ours.get(), attribute);  // the driver takes nothing but 0
        return result;
    }

    static Answer set_access(State& state, Handle pool, const typename Driver::Access* accesses, size_t count) {
        Answer result = Driver::set_access(pool, accesses, count);
        PinnedPool ours = result == Driver::kDone ? known(state, pool) : PinnedPool();
        for (size_t i = 0; ours && i < count; i++)
            if (accesses[i].location.type == Driver::kOnDevice)
                set_pool_access(state, ours.get(), device_bit(accesses[i].location.id),
                                accesses[i].flags != Driver::kNoAccess);
        return result;
    }

  private:
    static PinnedPool found_after(State& state, Answer result, Handle pool) {
        return result == Driver::kDone ? find_pool(state, key_of(pool)) : PinnedPool();
    }
};

}  // namespace device
}  // namespace gcr

#endif  // GCR_DEVICE_POOL_CALLS_H
