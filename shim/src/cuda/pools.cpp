// SPDX-License-Identifier: Apache-2.0
//
// Memory the driver allocates itself: stream-ordered allocations and their pools, unified memory, arrays. Passed on, and
// counted while it lives.
#include "cuda/captures.h"
#include "cuda/carried.h"
#include "cuda/contexts.h"
#include "cuda/driver.h"
#include "hooks/cuda_calls.h"

namespace gcr {
namespace cuda {
namespace {

template <typename Allocate>
CUresult allocate_in_stream(CUdeviceptr* dptr, size_t bytes, CUstream stream, bool per_thread, Allocate call) {
    CUresult result = call();
    if (result != CUDA_SUCCESS) return result;
    bool captured = captures_in_progress() > 0 && is_capturing(stream, per_thread);
    carry(*dptr, bytes, captured ? wire::kReasonCapture : wire::kReasonPool);
    return result;
}

bool is_plain_allocation(CUdeviceptr address) {
    Guard guard(state.lock);
    return state.allocations.find(address) != nullptr;
}

// cuMemFreeAsync takes memory of cuMemAlloc, too. It may only go once the stream got there.
template <typename Free, typename Wait>
CUresult free_in_stream(CUdeviceptr address, Free call, Wait wait) {
    if (!is_plain_allocation(address)) return free_carried(address, call);
    CUresult waited = wait();
    return waited == CUDA_SUCCESS ? on_cuMemFree_v2(address) : waited;
}

uint64_t element_bytes(CUarray_format format, unsigned int channels) {
    bool one = format == 0x01 || format == 0x08, four = format == 0x03 || format == 0x0a || format == 0x20;
    return (one ? 1u : four ? 4u : 2u) * channels;  // 8-bit, 32-bit and float; the rest are 16-bit or close to it
}

uint64_t at_least_one(size_t extent) {
    return extent == 0 ? 1 : extent;
}

uint64_t array_bytes(const CUDA_ARRAY3D_DESCRIPTOR& array) {
    return array.Width * at_least_one(array.Height) * at_least_one(array.Depth) *
           element_bytes(array.Format, array.NumChannels);
}

Reason pool_reason(const CUmemPoolProps& props) {
    if (props.location.type == CU_MEM_LOCATION_TYPE_DEVICE || props.location.type == CU_MEM_LOCATION_TYPE_INVALID)
        return kCovered;
    return wire::kReasonHostNuma;
}

}  // namespace

CUresult on_cuMemAllocAsync(CUdeviceptr* dptr, size_t bytesize, CUstream hStream) {
    return allocate_in_stream(dptr, bytesize, hStream, false,
                              [&] { return real::cuMemAllocAsync(dptr, bytesize, hStream); });
}

CUresult on_cuMemAllocAsync_ptsz(CUdeviceptr* dptr, size_t bytesize, CUstream hStream) {
    return allocate_in_stream(dptr, bytesize, hStream, true,
                              [&] { return real::cuMemAllocAsync_ptsz(dptr, bytesize, hStream); });
}

CUresult on_cuMemAllocFromPoolAsync(CUdeviceptr* dptr, size_t bytesize, CUmemoryPool pool, CUstream hStream) {
    return allocate_in_stream(dptr, bytesize, hStream, false,
                              [&] { return real::cuMemAllocFromPoolAsync(dptr, bytesize, pool, hStream); });
}

CUresult on_cuMemAllocFromPoolAsync_ptsz(CUdeviceptr* dptr, size_t bytesize, CUmemoryPool pool, CUstream hStream) {
    return allocate_in_stream(dptr, bytesize, hStream, true,
                              [&] { return real::cuMemAllocFromPoolAsync_ptsz(dptr, bytesize, pool, hStream); });
}

CUresult on_cuMemFreeAsync(CUdeviceptr dptr, CUstream hStream) {
    return free_in_stream(
        dptr, [&](CUdeviceptr p) { return real::cuMemFreeAsync(p, hStream); },
        [&] { return real::cuStreamSynchronize(hStream); });
}

CUresult on_cuMemFreeAsync_ptsz(CUdeviceptr dptr, CUstream hStream) {
    return free_in_stream(
        dptr, [&](CUdeviceptr p) { return real::cuMemFreeAsync_ptsz(p, hStream); },
        [&] { return real::cuStreamSynchronize_ptsz(hStream); });
}

CUresult on_cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps* poolProps) {
    CUresult result = real::cuMemPoolCreate(pool, poolProps);
    if (result == CUDA_SUCCESS && pool_reason(*poolProps) != kCovered) carry(*pool, 0, pool_reason(*poolProps));
    return result;
}

CUresult on_cuMemPoolDestroy(CUmemoryPool pool) {
    return free_carried(reinterpret_cast<uint64_t>(pool), [&](uint64_t) { return real::cuMemPoolDestroy(pool); });
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

CUresult on_cuMemAllocManaged(CUdeviceptr* dptr, size_t bytesize, unsigned int flags) {
    CUresult result = real::cuMemAllocManaged(dptr, bytesize, flags);
    if (result == CUDA_SUCCESS) carry(*dptr, bytesize, wire::kReasonManaged);
    return result;
}

CUresult on_cuArrayCreate_v2(CUarray* pHandle, const CUDA_ARRAY_DESCRIPTOR* pAllocateArray) {
    CUresult result = real::cuArrayCreate_v2(pHandle, pAllocateArray);
    if (result != CUDA_SUCCESS) return result;
    const CUDA_ARRAY_DESCRIPTOR& flat = *pAllocateArray;
    carry(*pHandle, array_bytes({flat.Width, flat.Height, 0, flat.Format, flat.NumChannels, 0}), wire::kReasonArray);
    return result;
}

CUresult on_cuArray3DCreate_v2(CUarray* pHandle, const CUDA_ARRAY3D_DESCRIPTOR* pAllocateArray) {
    CUresult result = real::cuArray3DCreate_v2(pHandle, pAllocateArray);
    if (result == CUDA_SUCCESS) carry(*pHandle, array_bytes(*pAllocateArray), wire::kReasonArray);
    return result;
}

CUresult on_cuArrayDestroy(CUarray hArray) {
    return free_carried(reinterpret_cast<uint64_t>(hArray), [&](uint64_t) { return real::cuArrayDestroy(hArray); });
}

// All levels together are at most twice the first.
CUresult on_cuMipmappedArrayCreate(CUmipmappedArray* pHandle, const CUDA_ARRAY3D_DESCRIPTOR* pMipmappedArrayDesc,
                                   unsigned int numMipmapLevels) {
    CUresult result = real::cuMipmappedArrayCreate(pHandle, pMipmappedArrayDesc, numMipmapLevels);
    if (result != CUDA_SUCCESS) return result;
    uint64_t first = array_bytes(*pMipmappedArrayDesc);
    carry(*pHandle, numMipmapLevels > 1 ? 2 * first : first, wire::kReasonArray);
    return result;
}

CUresult on_cuMipmappedArrayDestroy(CUmipmappedArray hMipmappedArray) {
    return free_carried(reinterpret_cast<uint64_t>(hMipmappedArray),
                        [&](uint64_t) { return real::cuMipmappedArrayDestroy(hMipmappedArray); });
}

}  // namespace cuda
}  // namespace gcr
