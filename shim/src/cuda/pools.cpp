// SPDX-License-Identifier: Apache-2.0
//
// Stream-ordered allocation. Pools of device memory that no other process can be given are served from memory of ours
// (device/pools.h); what is allocated in a stream that captures, and pools that can be exported, are the driver's, and
// counted while they live.
#include "device/pool_calls.h"

#include "cuda/captures.h"
#include "cuda/carried.h"
#include "cuda/contexts.h"
#include "cuda/driver.h"
#include "cuda/stream_order.h"
#include "device/allocations.h"
#include "device/devices.h"
#include "hooks/cuda_calls.h"

namespace gcr {
namespace cuda {
namespace {

using device::PinnedPool;

constexpr unsigned short kNoUsage = 0;

bool servable(const CUmemPoolProps& props) {
    return props.location.type == CU_MEM_LOCATION_TYPE_DEVICE && props.allocType == CU_MEM_ALLOCATION_TYPE_PINNED &&
           props.handleTypes == CU_MEM_HANDLE_TYPE_NONE && props.usage == kNoUsage;
}

Reason pool_reason(const CUmemPoolProps& props) {
    if (props.location.type == CU_MEM_LOCATION_TYPE_DEVICE || props.location.type == CU_MEM_LOCATION_TYPE_INVALID)
        return kCovered;
    return wire::kReasonHostNuma;
}

PinnedPool record_pool(CUmemoryPool handle, CUdevice device, uint64_t limit);

struct Driver {
    using Pool = CUmemoryPool;
    using Attribute = CUmemPool_attribute;
    using Access = CUmemAccessDesc;
    using Result = CUresult;
    static constexpr Result kDone = CUDA_SUCCESS;
    static constexpr auto kOnDevice = CU_MEM_LOCATION_TYPE_DEVICE;
    static constexpr auto kNoAccess = CU_MEM_ACCESS_FLAGS_PROT_NONE;

    static Result count_devices(int* count) { return real::cuDeviceGetCount(count); }
    static Result default_pool(Pool* found, int device) { return real::cuDeviceGetDefaultMemPool(found, device); }
    static Result get_attribute(Pool pool, uint32_t which, void* value) {
        return real::cuMemPoolGetAttribute(pool, which, value);
    }
    static Result set_attribute(Pool pool, uint32_t which, void* value) {
        return real::cuMemPoolSetAttribute(pool, which, value);
    }
    static Result trim_to(Pool pool, size_t keep) { return real::cuMemPoolTrimTo(pool, keep); }
    static Result set_access(Pool pool, const Access* accesses, size_t count) {
        return real::cuMemPoolSetAccess(pool, accesses, count);
    }
    static PinnedPool record(Pool pool, int device, uint64_t limit) { return record_pool(pool, device, limit); }
};
using Pools = device::PoolCalls<Driver>;

PinnedPool record_pool(CUmemoryPool handle, CUdevice device, uint64_t limit) {
    if (!streams_have_ids() || !device::facts_of(state, device).shareable) return {};
    uint64_t threshold = 0;
    RelaxedMode relaxed;  // the program did not ask this, so it may break no capture
    if (real::cuMemPoolGetAttribute(handle, device::kThreshold, &threshold) != CUDA_SUCCESS) return {};
    return device::record_pool(state, Pools::key_of(handle), {device, limit, threshold, Pools::policies_of(handle)});
}

CUdevice device_of(const StreamName& stream) {
    PinnedContext context(reinterpret_cast<CUcontext>(stream.owner));
    return context.device();
}

PinnedPool current_pool(const StreamName& stream) {
    CUdevice device = device_of(stream);
    CUmemoryPool handle = nullptr;
    if (device < 0 || real::cuDeviceGetMemPool(&handle, device) != CUDA_SUCCESS) return {};
    return Pools::known(state, handle);
}

// True: `result` is the answer.
template <typename PoolFor>
bool allocate_ours(CUdeviceptr* out, size_t bytes, CUstream stream, bool per_thread, PoolFor pool_for,
                   CUresult* result) {
    StreamName name;
    if (out == nullptr || bytes == 0 || !streams_have_ids() || may_capture(stream, per_thread)) return false;
    if (capture_forbids_allocation()) return false;  // the driver says so, and breaks that capture
    if (current_context() == nullptr || !name_stream(stream, per_thread, &name)) return false;
    PinnedPool pool = pool_for(name);
    if (!pool) return false;
    uint64_t address = 0;
    RelaxedMode relaxed;
    *result = static_cast<CUresult>(device::allocate_in_pool(state, pool.get(), name, bytes, &address));
    if (*result == CUDA_SUCCESS) *out = address;
    return *result == CUDA_SUCCESS || pool->limit != 0;  // the driver would grant as much as the limit once more
}

// The driver's errors, and what it keeps: it may also find room where we do not, if not in what our pools have free.
template <typename PoolFor, typename Allocate>
CUresult allocate_in_stream(CUdeviceptr* dptr, size_t bytes, CUstream stream, bool per_thread, PoolFor pool_for,
                            Allocate call) {
    CUresult result = CUDA_SUCCESS;
    if (allocate_ours(dptr, bytes, stream, per_thread, pool_for, &result)) return result;
    result = call();
    if (result == CUDA_ERROR_OUT_OF_MEMORY && device::trim_all(state)) result = call();
    if (result != CUDA_SUCCESS || bytes == 0) return result;
    bool captured = captures_in_progress() > 0 && is_capturing(stream, per_thread);
    carry(*dptr, bytes, captured ? wire::kReasonCapture : wire::kReasonPool);
    return result;
}

auto the(CUmemoryPool pool) {
    return [pool](const StreamName&) { return Pools::known(state, pool); };
}

bool is_plain_allocation(CUdeviceptr address) {
    Guard guard(state.lock);
    return state.allocations.find(address) != nullptr;
}

// True: a capture of the program forbids work in this stream, and the driver, asked of the stream, said so and broke
// it. Told to free it would look at the address first, and ours is nothing to it.
bool forbidden_beside_captures(CUstream stream, bool per_thread, CUresult* result) {
    if (captures_in_progress() == 0) return false;
    *result = per_thread ? real::cuStreamQuery_ptsz(stream) : real::cuStreamQuery(stream);
    return *result == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED || *result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
}

// A stream that captures, or is none: the driver says so, of an address that is nothing to it.
template <typename Free>
CUresult free_ours(CUdeviceptr address, CUstream stream, bool per_thread, Free call) {
    StreamName name;
    CUresult forbidden = CUDA_SUCCESS;
    if (captures_in_progress() > 0 && is_capturing(stream, per_thread)) return call(address);
    if (forbidden_beside_captures(stream, per_thread, &forbidden)) return forbidden;
    if (!name_stream(stream, per_thread, &name)) return call(address);
    return device::free_in_stream(state, address, name) ? CUDA_SUCCESS : call(address);
}

// cuMemFreeAsync takes memory of cuMemAlloc, too. It may only go once the stream got there.
template <typename Free, typename Wait>
CUresult free_in_stream(CUdeviceptr address, CUstream stream, bool per_thread, Free call, Wait wait) {
    if (device::is_in_pool(state, address)) return free_ours(address, stream, per_thread, call);
    if (!is_plain_allocation(address)) return free_carried(address, call);
    CUresult waited = wait();
    return waited == CUDA_SUCCESS ? on_cuMemFree_v2(address) : waited;
}

}  // namespace

bool pools_hold_too_much() {
    return device::pools_hold_too_much(state);
}

void trim_pools() {
    device::trim_to_thresholds(state);
}

CUresult on_cuMemAllocAsync(CUdeviceptr* dptr, size_t bytesize, CUstream hStream) {
    return allocate_in_stream(dptr, bytesize, hStream, false, current_pool,
                              [&] { return real::cuMemAllocAsync(dptr, bytesize, hStream); });
}

CUresult on_cuMemAllocAsync_ptsz(CUdeviceptr* dptr, size_t bytesize, CUstream hStream) {
    return allocate_in_stream(dptr, bytesize, hStream, true, current_pool,
                              [&] { return real::cuMemAllocAsync_ptsz(dptr, bytesize, hStream); });
}

CUresult on_cuMemAllocFromPoolAsync(CUdeviceptr* dptr, size_t bytesize, CUmemoryPool pool, CUstream hStream) {
    return allocate_in_stream(dptr, bytesize, hStream, false, the(pool),
                              [&] { return real::cuMemAllocFromPoolAsync(dptr, bytesize, pool, hStream); });
}

CUresult on_cuMemAllocFromPoolAsync_ptsz(CUdeviceptr* dptr, size_t bytesize, CUmemoryPool pool, CUstream hStream) {
    return allocate_in_stream(dptr, bytesize, hStream, true, the(pool),
                              [&] { return real::cuMemAllocFromPoolAsync_ptsz(dptr, bytesize, pool, hStream); });
}

CUresult on_cuMemFreeAsync(CUdeviceptr dptr, CUstream hStream) {
    return free_in_stream(
        dptr, hStream, false, [&](CUdeviceptr p) { return real::cuMemFreeAsync(p, hStream); },
        [&] { return real::cuStreamSynchronize(hStream); });
}

CUresult on_cuMemFreeAsync_ptsz(CUdeviceptr dptr, CUstream hStream) {
    return free_in_stream(
        dptr, hStream, true, [&](CUdeviceptr p) { return real::cuMemFreeAsync_ptsz(p, hStream); },
        [&] { return real::cuStreamSynchronize_ptsz(hStream); });
}

CUresult on_cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps* poolProps) {
    CUresult result = real::cuMemPoolCreate(pool, poolProps);
    if (result != CUDA_SUCCESS) return result;
    if (servable(*poolProps)) record_pool(*pool, poolProps->location.id, poolProps->maxSize);
    if (pool_reason(*poolProps) != kCovered) carry(*pool, 0, pool_reason(*poolProps));
    return result;
}

CUresult on_cuMemPoolDestroy(CUmemoryPool pool) {
    return Pools::destroy(state, pool, [&] {
        return free_carried(Pools::key_of(pool), [&](uint64_t) { return real::cuMemPoolDestroy(pool); });
    });
}

CUresult on_cuMemPoolTrimTo(CUmemoryPool pool, size_t minBytesToKeep) {
    return Pools::trim_to(state, pool, minBytesToKeep);
}

CUresult on_cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void* value) {
    return Pools::get_attribute(state, pool, attr, value);
}

CUresult on_cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void* value) {
    return Pools::set_attribute(state, pool, attr, value);
}

CUresult on_cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc* map, size_t count) {
    return Pools::set_access(state, pool, map, count);
}

// Another process that holds such a pool goes on using its memory: counted for good.
CUresult on_cuMemPoolExportToShareableHandle(void* handle_out, CUmemoryPool pool, CUmemAllocationHandleType handleType,
                                             unsigned long long flags) {
    CUresult result = real::cuMemPoolExportToShareableHandle(handle_out, pool, handleType, flags);
    if (result == CUDA_SUCCESS) add_uncovered(wire::kReasonShareableExport, 0);
    return result;
}

CUresult on_cuMemPoolImportFromShareableHandle(CUmemoryPool* pool_out, void* handle,
                                               CUmemAllocationHandleType handleType, unsigned long long flags) {
    CUresult result = real::cuMemPoolImportFromShareableHandle(pool_out, handle, handleType, flags);
    if (result == CUDA_SUCCESS) carry(*pool_out, 0, wire::kReasonShareableImport);
    return result;
}

CUresult on_cuMemPoolImportPointer(CUdeviceptr* ptr_out, CUmemoryPool pool, CUmemPoolPtrExportData* shareData) {
    CUresult result = real::cuMemPoolImportPointer(ptr_out, pool, shareData);
    if (result == CUDA_SUCCESS) carry(*ptr_out, 0, wire::kReasonShareableImport);
    return result;
}

}  // namespace cuda
}  // namespace gcr
