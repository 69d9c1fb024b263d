// SPDX-License-Identifier: Apache-2.0
//
// Pinned host memory of the program: the driver keeps it, and it makes a checkpoint slower; STATUS says how much.
#include "cuda/carried.h"
#include "hooks/cuda_calls.h"

namespace gcr {
namespace cuda {
namespace {

CUresult pinned(CUresult result, void* const* address, uint64_t bytes) {
    if (result == CUDA_SUCCESS)
        state.pinned.add(reinterpret_cast<uint64_t>(*address), {bytes, kCovered, context_now()});
    return result;
}

// Forgotten before the driver lets go: the address may be pinned anew at once.
template <typename Free>
CUresult unpin(void* address, Free call) {
    return state.pinned.free_with(reinterpret_cast<uint64_t>(address), call);
}

}  // namespace

CUresult on_cuMemHostAlloc(void** pp, size_t bytesize, unsigned int Flags) {
    return pinned(real::cuMemHostAlloc(pp, bytesize, Flags), pp, bytesize);
}

CUresult on_cuMemAllocHost_v2(void** pp, size_t bytesize) {
    return pinned(real::cuMemAllocHost_v2(pp, bytesize), pp, bytesize);
}

CUresult on_cuMemHostRegister_v2(void* p, size_t bytesize, unsigned int Flags) {
    return pinned(real::cuMemHostRegister_v2(p, bytesize, Flags), &p, bytesize);
}

CUresult on_cuMemFreeHost(void* p) {
    return unpin(p, [&] { return real::cuMemFreeHost(p); });
}

CUresult on_cuMemHostUnregister(void* p) {
    return unpin(p, [&] { return real::cuMemHostUnregister(p); });
}

}  // namespace cuda
}  // namespace gcr
