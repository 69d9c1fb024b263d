// SPDX-License-Identifier: Apache-2.0
//
// Memory that stays with the runtime: unified memory and arrays. Passed on, and counted while it lives.
#include "hip/carried.h"

#include "hooks/hip_calls.h"

namespace gcr {
namespace hip {
namespace {

uint64_t at_least_one(size_t extent) {
    return extent == 0 ? 1 : extent;
}

uint64_t volume(const hipExtent& extent) {
    return at_least_one(extent.width) * at_least_one(extent.height) * at_least_one(extent.depth);
}

uint64_t element_bytes(const hipChannelFormatDesc& format) {
    return at_least_one(static_cast<size_t>(format.x + format.y + format.z + format.w) / 8);
}

// The formats are CUDA's: 8-bit, 32-bit and float; the rest are 16-bit or close to it.
uint64_t element_bytes(unsigned int format, unsigned int channels) {
    bool one = format == 0x01 || format == 0x08, four = format == 0x03 || format == 0x0a || format == 0x20;
    return (one ? 1u : four ? 4u : 2u) * channels;
}

uint64_t array_bytes(const HIP_ARRAY3D_DESCRIPTOR& array) {
    return volume({array.Width, array.Height, array.Depth}) * element_bytes(array.Format, array.NumChannels);
}

// All levels together are at most twice the first.
uint64_t with_levels(uint64_t first, unsigned int levels) {
    return levels > 1 ? 2 * first : first;
}

}  // namespace

hipError_t on_hipMallocManaged(void** dev_ptr, size_t size, unsigned int flags) {
    hipError_t result = real::hipMallocManaged(dev_ptr, size, flags);
    return result == hipSuccess ? carry(result, *dev_ptr, size, wire::kReasonManaged) : result;
}

hipError_t on_hipMallocArray(hipArray_t* array, const hipChannelFormatDesc* desc, size_t width, size_t height,
                             unsigned int flags) {
    hipError_t result = real::hipMallocArray(array, desc, width, height, flags);
    if (result != hipSuccess) return result;
    return carry(result, *array, volume({width, height, 0}) * element_bytes(*desc), wire::kReasonArray);
}

hipError_t on_hipMalloc3DArray(hipArray_t* array, const hipChannelFormatDesc* desc, hipExtent extent,
                               unsigned int flags) {
    hipError_t result = real::hipMalloc3DArray(array, desc, extent, flags);
    if (result != hipSuccess) return result;
    return carry(result, *array, volume(extent) * element_bytes(*desc), wire::kReasonArray);
}

hipError_t on_hipArrayCreate(hipArray_t* pHandle, const HIP_ARRAY_DESCRIPTOR* pAllocateArray) {
    hipError_t result = real::hipArrayCreate(pHandle, pAllocateArray);
    if (result != hipSuccess) return result;
    const HIP_ARRAY_DESCRIPTOR& flat = *pAllocateArray;
    uint64_t bytes = array_bytes({flat.Width, flat.Height, 0, flat.Format, flat.NumChannels, 0});
    return carry(result, *pHandle, bytes, wire::kReasonArray);
}

hipError_t on_hipArray3DCreate(hipArray_t* array, const HIP_ARRAY3D_DESCRIPTOR* pAllocateArray) {
    hipError_t result = real::hipArray3DCreate(array, pAllocateArray);
    return result == hipSuccess ? carry(result, *array, array_bytes(*pAllocateArray), wire::kReasonArray) : result;
}

hipError_t on_hipFreeArray(hipArray_t array) {
    return free_carried(array, [&] { return real::hipFreeArray(array); });
}

hipError_t on_hipArrayDestroy(hipArray_t array) {
    return free_carried(array, [&] { return real::hipArrayDestroy(array); });
}

hipError_t on_hipMallocMipmappedArray(hipMipmappedArray_t* mipmappedArray, const hipChannelFormatDesc* desc,
                                      hipExtent extent, unsigned int numLevels, unsigned int flags) {
    hipError_t result = real::hipMallocMipmappedArray(mipmappedArray, desc, extent, numLevels, flags);
    if (result != hipSuccess) return result;
    uint64_t first = volume(extent) * element_bytes(*desc);
    return carry(result, *mipmappedArray, with_levels(first, numLevels), wire::kReasonArray);
}

hipError_t on_hipMipmappedArrayCreate(hipMipmappedArray_t* pHandle, HIP_ARRAY3D_DESCRIPTOR* pMipmappedArrayDesc,
                                      unsigned int numMipmapLevels) {
    hipError_t result = real::hipMipmappedArrayCreate(pHandle, pMipmappedArrayDesc, numMipmapLevels);
    if (result != hipSuccess) return result;
    uint64_t first = array_bytes(*pMipmappedArrayDesc);
    return carry(result, *pHandle, with_levels(first, numMipmapLevels), wire::kReasonArray);
}

hipError_t on_hipFreeMipmappedArray(hipMipmappedArray_t mipmappedArray) {
    return free_carried(mipmappedArray, [&] { return real::hipFreeMipmappedArray(mipmappedArray); });
}

hipError_t on_hipMipmappedArrayDestroy(hipMipmappedArray_t hMipmappedArray) {
    return free_carried(hMipmappedArray, [&] { return real::hipMipmappedArrayDestroy(hMipmappedArray); });
}

}  // namespace hip
}  // namespace gcr
