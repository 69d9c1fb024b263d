// SPDX-License-Identifier: Apache-2.0
//
// Memory the runtime allocates itself: stream-ordered allocations and their pools, unified memory, arrays. Passed on, and
// counted while it lives.
#include "hip/captures.h"
#include "hip/carried.h"
#include "hip/free.h"
#include "hooks/hip_calls.h"

namespace gcr {
namespace hip {
namespace {

hipError_t allocated_in_stream(hipError_t result, void** pointer, size_t bytes, hipStream_t stream) {
    if (result != hipSuccess) return result;
    bool captured = captures_in_progress() > 0 && is_capturing(stream, false);
    return carry(result, *pointer, bytes, captured ? wire::kReasonCapture : wire::kReasonPool);
}

bool is_plain_allocation(const void* pointer) {
    Guard guard(state.lock);
    return state.allocations.find(key_of(pointer)) != nullptr;
}

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

Reason pool_reason(const hipMemPoolProps& props) {
    bool device = props.location.type == hipMemLocationTypeDevice || props.location.type == hipMemLocationTypeInvalid;
    return device ? kCovered : wire::kReasonHostNuma;
}

}  // namespace

hipError_t on_hipMallocAsync(void** dev_ptr, size_t size, hipStream_t stream) {
    return allocated_in_stream(real::hipMallocAsync(dev_ptr, size, stream), dev_ptr, size, stream);
}

hipError_t on_hipMallocFromPoolAsync(void** dev_ptr, size_t size, hipMemPool_t mem_pool, hipStream_t stream) {
    return allocated_in_stream(real::hipMallocFromPoolAsync(dev_ptr, size, mem_pool, stream), dev_ptr, size, stream);
}

// It takes memory of hipMalloc, too. That may only go once the stream got there.
hipError_t on_hipFreeAsync(void* dev_ptr, hipStream_t stream) {
    if (!is_plain_allocation(dev_ptr))
        return free_carried(dev_ptr, [&] { return real::hipFreeAsync(dev_ptr, stream); });
    hipError_t waited = real::hipStreamSynchronize(stream);
    return waited == hipSuccess ? free_device(dev_ptr) : waited;
}

hipError_t on_hipMemPoolCreate(hipMemPool_t* mem_pool, const hipMemPoolProps* pool_props) {
    hipError_t result = real::hipMemPoolCreate(mem_pool, pool_props);
    if (result != hipSuccess || pool_reason(*pool_props) == kCovered) return result;
    return carry(result, *mem_pool, 0, pool_reason(*pool_props));
}

hipError_t on_hipMemPoolDestroy(hipMemPool_t mem_pool) {
    return free_carried(mem_pool, [&] { return real::hipMemPoolDestroy(mem_pool); });
}

// Whoever holds such a pool elsewhere goes on using its memory: counted for good.
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
