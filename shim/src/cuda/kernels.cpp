// SPDX-License-Identifier: Apache-2.0
//
// Learns kernels when the program looks them up. Their names tell which launches wait for other processes.
#include "core/coupled.h"
#include "cuda/driver.h"
#include "hooks/cuda_calls.h"

namespace gcr {
namespace cuda {
namespace {

uint64_t handle_of(const void* object) {
    return reinterpret_cast<uint64_t>(object);
}

}  // namespace

CUresult on_cuModuleGetFunction(CUfunction* hfunc, CUmodule hmod, const char* name) {
    CUresult result = real::cuModuleGetFunction(hfunc, hmod, name);
    if (result == CUDA_SUCCESS) coupled::learn(handle_of(*hfunc), name);
    return result;
}

// A driver launches a kernel of a library by either handle.
CUresult on_cuLibraryGetKernel(CUkernel* pKernel, CUlibrary library, const char* name) {
    CUresult result = real::cuLibraryGetKernel(pKernel, library, name);
    if (result == CUDA_SUCCESS) coupled::learn(handle_of(*pKernel), name);
    return result;
}

CUresult on_cuKernelGetFunction(CUfunction* pFunc, CUkernel kernel) {
    CUresult result = real::cuKernelGetFunction(pFunc, kernel);
    if (result == CUDA_SUCCESS) coupled::learn_same(handle_of(*pFunc), handle_of(kernel));
    return result;
}

}  // namespace cuda
}  // namespace gcr
