// SPDX-License-Identifier: Apache-2.0
//
// Pinned host memory of the program: the runtime keeps it; STATUS says how much.
#include "hip/free.h"
#include "hooks/hip_calls.h"

namespace gcr {
namespace hip {
namespace {

hipError_t pinned(hipError_t result, void* const* address, uint64_t bytes) {
    if (result == hipSuccess) state.pinned.add(key_of(*address), {bytes, kCovered, nullptr});
    return result;
}

// Forgotten before the runtime lets go: the address may be pinned anew at once.
template <typename Free>
hipError_t unpin(void* address, Free call) {
    return state.pinned.free_with(key_of(address), call);
}

}  // namespace

hipError_t on_hipHostMalloc(void** ptr, size_t size, unsigned int flags) {
    return pinned(real::hipHostMalloc(ptr, size, flags), ptr, size);
}

hipError_t on_hipHostAlloc(void** ptr, size_t size, unsigned int flags) {
    return pinned(real::hipHostAlloc(ptr, size, flags), ptr, size);
}

hipError_t on_hipMallocHost(void** ptr, size_t size) {
    return pinned(real::hipMallocHost(ptr, size), ptr, size);
}

hipError_t on_hipMemAllocHost(void** ptr, size_t size) {
    return pinned(real::hipMemAllocHost(ptr, size), ptr, size);
}

hipError_t on_hipHostRegister(void* hostPtr, size_t sizeBytes, unsigned int flags) {
    return pinned(real::hipHostRegister(hostPtr, sizeBytes, flags), &hostPtr, sizeBytes);
}

hipError_t on_hipHostFree(void* ptr) {
    return unpin(ptr, [&] { return real::hipHostFree(ptr); });
}

hipError_t on_hipFreeHost(void* ptr) {
    return unpin(ptr, [&] { return real::hipFreeHost(ptr); });
}

hipError_t on_hipHostUnregister(void* hostPtr) {
    return unpin(hostPtr, [&] { return real::hipHostUnregister(hostPtr); });
}

}  // namespace hip
}  // namespace gcr
