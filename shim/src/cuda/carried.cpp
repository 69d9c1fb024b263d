// SPDX-License-Identifier: Apache-2.0
//
// Memory that stays with the driver: unified memory and arrays. Passed on, and counted while it lives.
#include "cuda/carried.h"

#include "hooks/cuda_calls.h"

namespace gcr {
namespace cuda {
namespace {

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

}  // namespace

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
