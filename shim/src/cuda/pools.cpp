// SPDX-License-Identifier: Apache-2.0
//
// Stream-ordered allocation. Pools of device memory that nobody else can be given are served from memory of ours
// (device/pools.h); what is allocated in a stream that captures, and pools that can be exported, are the driver's, and
// counted while they live.
#include "device/pools.h"

#include <initializer_list>

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
using device::Pool;

constexpr unsigned short kNoUsage = 0;

uint64_t key_of(CUmemoryPool pool) {
    return reinterpret_cast<uint64_t>(pool);
}

bool servable(const CUmemPoolProps& props) {
    return props.location.type == CU_MEM_LOCATION_TYPE_DEVICE && props.allocType == CU_MEM_ALLOCATION_TYPE_PINNED &&
           props.handleTypes == CU_MEM_HANDLE_TYPE_NONE && props.usage == kNoUsage;
}

Reason pool_reason(const CUmemPoolProps& props) {
    if (props.location.type == CU_MEM_LOCATION_TYPE_DEVICE || props.location.type == CU_MEM_LOCATION_TYPE_INVALID)
        return kCovered;
    return wire::kReasonHostNuma;
}

uint32_t policies_of(CUmemoryPool handle) {
    uint32_t found = 0;
    for (uint32_t policy : {device::kReuseOpportunistic, device::kReuseInternal}) {
        int on = 1;
        real::cuMemPoolGetAttribute(handle, policy, &on);
        if (on != 0) found |= device::policy_bit(policy);
    }
    return found;
}

PinnedPool record_pool(CUmemoryPool handle, CUdevice device, uint64_t limit) {
    if (!streams_have_ids() || !device::facts_of(state, device).shareable) return {};
    uint64_t threshold = 0;
    RelaxedMode relaxed;  // the program did not ask this, so it may break no capture
    if (real::cuMemPoolGetAttribute(handle, device::kThreshold, &threshold) != CUDA_SUCCESS) return {};
    return device::record_pool(state, key_of(handle), {device, limit, threshold, policies_of(handle)});
}

bool is_default_of(CUmemoryPool pool, CUdevice device) {
    CUmemoryPool found = nullptr;
    return real::cuDeviceGetDefaultMemPool(&found, device) == CUDA_SUCCESS && found == pool;
}

// Null: the driver's to serve. A default pool is recorded when it is first seen.
PinnedPool known_pool(CUmemoryPool handle) {
    PinnedPool pool = device::find_pool(state, key_of(handle));
    if (pool) return pool;
    int count = 0;
    real::cuDeviceGetCount(&count);
    for (CUdevice device = 0; device < count; device++)
        if (is_default_of(handle, device)) return record_pool(handle, device, 0);
    return {};
}

CUdevice device_of(const StreamName& stream) {
    PinnedContext context(reinterpret_cast<CUcontext>(stream.owner));
    return context.device();
}

PinnedPool current_pool(const StreamName& stream) {
    CUdevice device = device_of(stream);
    CUmemoryPool handle = nullptr;
    if (device < 0 || real::cuDeviceGetMemPool(&handle, device) != CUDA_SUCCESS) return {};
    return known_pool(handle);
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
    return [pool](const StreamName&) { return known_pool(pool); };
}

bool is_plain_allocation(CUdeviceptr address) {
    Guard guard(state.lock);
    return state.allocations.find(address) != nullptr;
}

// True: somebody's capture forbids work in this stream, and the driver, asked of the stream, said so and broke it. Told to
// free it would look at the address first, and ours is nothing to it.
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
    Pool* ours = device::take_pool(state, key_of(pool));
    CUresult result = free_carried(key_of(pool), [&](uint64_t) { return real::cuMemPoolDestroy(pool); });
    if (result == CUDA_SUCCESS)
        device::leave_pool(state, ours);
    else
        device::put_back_pool(state, ours);
    return result;
}

CUresult on_cuMemPoolTrimTo(CUmemoryPool pool, size_t minBytesToKeep) {
    CUresult result = real::cuMemPoolTrimTo(pool, minBytesToKeep);
    PinnedPool ours = result == CUDA_SUCCESS ? device::find_pool(state, key_of(pool)) : PinnedPool();
    if (ours) device::trim_pool(state, ours.get(), minBytesToKeep);
    return result;
}

CUresult on_cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void* value) {
    CUresult result = real::cuMemPoolGetAttribute(pool, attr, value);
    PinnedPool ours = result == CUDA_SUCCESS ? device::find_pool(state, key_of(pool)) : PinnedPool();
    uint64_t more = !ours ? 0 : device::counted(state, *ours.get(), attr);
    if (more != 0) *static_cast<uint64_t*>(value) += more;  // the driver counts what it serves itself
    return result;
}

CUresult on_cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void* value) {
    CUresult result = real::cuMemPoolSetAttribute(pool, attr, value);
    PinnedPool ours = result == CUDA_SUCCESS ? device::find_pool(state, key_of(pool)) : PinnedPool();
    if (!ours) return result;
    if (attr == device::kThreshold) device::set_threshold(state, key_of(pool), *static_cast<const uint64_t*>(value));
    device::set_policy(state, ours.get(), attr, *static_cast<const int*>(value) != 0);
    device::reset_most(state, ours.get(), attr);  // the driver takes nothing but 0
    return result;
}

CUresult on_cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc* map, size_t count) {
    CUresult result = real::cuMemPoolSetAccess(pool, map, count);
    PinnedPool ours = result == CUDA_SUCCESS ? known_pool(pool) : PinnedPool();
    for (size_t i = 0; ours && i < count; i++)
        if (map[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE)
            device::set_pool_access(state, ours.get(), device::device_bit(map[i].location.id),
                                    map[i].flags != CU_MEM_ACCESS_FLAGS_PROT_NONE);
    return result;
}

// Whoever holds such a pool elsewhere goes on using its memory: counted for good.
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
