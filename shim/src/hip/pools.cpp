// SPDX-License-Identifier: Apache-2.0
//
// Stream-ordered allocation. Pools of device memory that no other process can be given are served from memory of ours
// (device/pools.h); what is allocated in a stream that captures, and pools that can be exported, are the runtime's, and
// counted while they live.
#include "device/pool_calls.h"

#include "device/allocations.h"
#include "device/devices.h"
#include "hip/captures.h"
#include "hip/carried.h"
#include "hip/free.h"
#include "hip/stream_order.h"
#include "hooks/hip_calls.h"

namespace gcr {
namespace hip {
namespace {

using device::PinnedPool;

bool servable(const hipMemPoolProps& props) {
    return props.location.type == hipMemLocationTypeDevice && props.allocType == hipMemAllocationTypePinned &&
           props.handleTypes == hipMemHandleTypeNone;
}

Reason pool_reason(const hipMemPoolProps& props) {
    bool device = props.location.type == hipMemLocationTypeDevice || props.location.type == hipMemLocationTypeInvalid;
    return device ? kCovered : wire::kReasonHostNuma;
}

PinnedPool record_pool(hipMemPool_t handle, int device, uint64_t limit);

struct Driver {
    using Pool = hipMemPool_t;
    using Attribute = hipMemPoolAttr;
    using Access = hipMemAccessDesc;
    using Result = hipError_t;
    static constexpr Result kDone = hipSuccess;
    static constexpr auto kOnDevice = hipMemLocationTypeDevice;
    static constexpr auto kNoAccess = hipMemAccessFlagsProtNone;

    static Result count_devices(int* count) { return real::hipGetDeviceCount(count); }
    static Result default_pool(Pool* found, int device) { return real::hipDeviceGetDefaultMemPool(found, device); }
    static Result get_attribute(Pool pool, uint32_t which, void* value) {
        return real::hipMemPoolGetAttribute(pool, which, value);
    }
    static Result set_attribute(Pool pool, uint32_t which, void* value) {
        return real::hipMemPoolSetAttribute(pool, which, value);
    }
    static Result trim_to(Pool pool, size_t keep) { return real::hipMemPoolTrimTo(pool, keep); }
    static Result set_access(Pool pool, const Access* accesses, size_t count) {
        return real::hipMemPoolSetAccess(pool, accesses, count);
    }
    static PinnedPool record(Pool pool, int device, uint64_t limit) { return record_pool(pool, device, limit); }
};
using Pools = device::PoolCalls<Driver>;

PinnedPool record_pool(hipMemPool_t handle, int device, uint64_t limit) {
    if (!streams_have_ids() || !device::facts_of(state, device).shareable) return {};
    uint64_t threshold = 0;
    if (real::hipMemPoolGetAttribute(handle, device::kThreshold, &threshold) != hipSuccess) return {};
    return device::record_pool(state, key_of(handle), {device, limit, threshold, Pools::policies_of(handle)});
}

PinnedPool current_pool(const StreamName& stream) {
    hipMemPool_t handle = nullptr;
    bool known = real::hipDeviceGetMemPool(&handle, static_cast<int>(stream.owner)) == hipSuccess;
    return known ? Pools::known(state, handle) : PinnedPool();
}

// True: `result` is the answer.
template <typename PoolFor>
bool allocate_ours(void** out, size_t bytes, hipStream_t stream, PoolFor pool_for, hipError_t* result) {
    StreamName name;
    if (out == nullptr || bytes == 0 || !streams_have_ids() || may_capture(stream)) return false;
    if (current_owner() == nullptr || !name_stream(stream, &name)) return false;
    PinnedPool pool = pool_for(name);
    if (!pool) return false;
    uint64_t address = 0;
    RelaxedMode relaxed;
    *result = static_cast<hipError_t>(device::allocate_in_pool(state, pool.get(), name, bytes, &address));
    if (*result != hipSuccess) return pool->limit != 0;  // the runtime would grant as much as the limit once more
    use_device(pool->device);
    *out = pointer_at(address);
    return true;
}

// The runtime's errors, and what it keeps: it may also find room where we do not, if not in what our pools have free.
template <typename PoolFor, typename Allocate>
hipError_t allocate_in_stream(void** out, size_t bytes, hipStream_t stream, PoolFor pool_for, Allocate call) {
    hipError_t result = hipSuccess;
    if (allocate_ours(out, bytes, stream, pool_for, &result)) return result;
    result = call();
    if (result == hipErrorOutOfMemory && device::trim_all(state)) result = call();
    if (result != hipSuccess || bytes == 0) return result;
    bool captured = captures_in_progress() > 0 && is_capturing(stream, false);
    return carry(result, *out, bytes, captured ? wire::kReasonCapture : wire::kReasonPool);
}

bool is_plain_allocation(const void* pointer) {
    Guard guard(state.lock);
    return state.allocations.find(key_of(pointer)) != nullptr;
}

// A stream that captures, or is none: the runtime says so, of an address that is nothing to it.
hipError_t free_ours(void* pointer, hipStream_t stream) {
    StreamName name;
    if (may_capture(stream) || !name_stream(stream, &name)) return real::hipFreeAsync(pointer, stream);
    return device::free_in_stream(state, key_of(pointer), name) ? hipSuccess : real::hipFreeAsync(pointer, stream);
}

}  // namespace

bool pools_hold_too_much() {
    return device::pools_hold_too_much(state);
}

void trim_pools() {
    device::trim_to_thresholds(state);
}

hipError_t on_hipMallocAsync(void** dev_ptr, size_t size, hipStream_t stream) {
    return allocate_in_stream(dev_ptr, size, stream, current_pool,
                              [&] { return real::hipMallocAsync(dev_ptr, size, stream); });
}

hipError_t on_hipMallocFromPoolAsync(void** dev_ptr, size_t size, hipMemPool_t mem_pool, hipStream_t stream) {
    return allocate_in_stream(
        dev_ptr, size, stream, [&](const StreamName&) { return Pools::known(state, mem_pool); },
        [&] { return real::hipMallocFromPoolAsync(dev_ptr, size, mem_pool, stream); });
}

// It takes memory of hipMalloc, too. That may only go once the stream got there.
hipError_t on_hipFreeAsync(void* dev_ptr, hipStream_t stream) {
    if (device::is_in_pool(state, key_of(dev_ptr))) return free_ours(dev_ptr, stream);
    if (!is_plain_allocation(dev_ptr))
        return free_carried(dev_ptr, [&] { return real::hipFreeAsync(dev_ptr, stream); });
    hipError_t waited = real::hipStreamSynchronize(stream);
    return waited == hipSuccess ? free_device(dev_ptr) : waited;
}

hipError_t on_hipMemPoolCreate(hipMemPool_t* mem_pool, const hipMemPoolProps* pool_props) {
    hipError_t result = real::hipMemPoolCreate(mem_pool, pool_props);
    if (result != hipSuccess) return result;
    if (servable(*pool_props)) record_pool(*mem_pool, pool_props->location.id, pool_props->maxSize);
    Reason reason = pool_reason(*pool_props);
    return reason == kCovered ? result : carry(result, *mem_pool, 0, reason);
}

hipError_t on_hipMemPoolDestroy(hipMemPool_t mem_pool) {
    return Pools::destroy(state, mem_pool,
                          [&] { return free_carried(mem_pool, [&] { return real::hipMemPoolDestroy(mem_pool); }); });
}

hipError_t on_hipMemPoolTrimTo(hipMemPool_t mem_pool, size_t min_bytes_to_hold) {
    return Pools::trim_to(state, mem_pool, min_bytes_to_hold);
}

hipError_t on_hipMemPoolGetAttribute(hipMemPool_t mem_pool, hipMemPoolAttr attr, void* value) {
    return Pools::get_attribute(state, mem_pool, attr, value);
}

hipError_t on_hipMemPoolSetAttribute(hipMemPool_t mem_pool, hipMemPoolAttr attr, void* value) {
    return Pools::set_attribute(state, mem_pool, attr, value);
}

hipError_t on_hipMemPoolSetAccess(hipMemPool_t mem_pool, const hipMemAccessDesc* desc_list, size_t count) {
    return Pools::set_access(state, mem_pool, desc_list, count);
}

// Another process that holds such a pool goes on using its memory: counted for good.
hipError_t on_hipMemPoolExportToShareableHandle(void* shared_handle, hipMemPool_t mem_pool,
                                                hipMemAllocationHandleType handle_type, unsigned int flags) {
    hipError_t result = real::hipMemPoolExportToShareableHandle(shared_handle, mem_pool, handle_type, flags);
    if (result == hipSuccess) add_uncovered(wire::kReasonShareableExport, 0);
    return result;
}

hipError_t on_hipMemPoolImportFromShareableHandle(hipMemPool_t* mem_pool, void* shared_handle,
                                                  hipMemAllocationHandleType handle_type, unsigned int flags) {
    hipError_t result = real::hipMemPoolImportFromShareableHandle(mem_pool, shared_handle, handle_type, flags);
    return result == hipSuccess ? carry(result, *mem_pool, 0, wire::kReasonShareableImport) : result;
}

hipError_t on_hipMemPoolImportPointer(void** dev_ptr, hipMemPool_t mem_pool, void* export_data) {
    hipError_t result = real::hipMemPoolImportPointer(dev_ptr, mem_pool, export_data);
    return result == hipSuccess ? carry(result, *dev_ptr, 0, wire::kReasonShareableImport) : result;
}

}  // namespace hip
}  // namespace gcr
