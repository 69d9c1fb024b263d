// SPDX-License-Identifier: Apache-2.0
//
// cuGetProcAddress: the driver is asked first, and its answer replaced by the wrapper of the very variant it gave.
// A variant is (name, version, flags): versions of one name have different parameters, and the per-thread default
// stream's variants run on another stream. A wrong guess is a wrong call, so where the list cannot tell, the driver's
// own pointer is handed on and the name counted as unclassified.
// Any thread; not gated (a lookup neither enqueues nor waits); errno is kept.
#ifndef GCR_HOOKS_PROC_ADDRESS_H
#define GCR_HOOKS_PROC_ADDRESS_H

#include "abi/cuda.h"

namespace gcr {
namespace hooks {

cuda_abi::CUresult answer_cuGetProcAddress(const void* caller, const char* symbol, void** pfn, int version,
                                           uint64_t flags);
cuda_abi::CUresult answer_cuGetProcAddress_v2(const void* caller, const char* symbol, void** pfn, int version,
                                              uint64_t flags, cuda_abi::CUdriverProcAddressQueryResult* status);

}  // namespace hooks
}  // namespace gcr

#endif  // GCR_HOOKS_PROC_ADDRESS_H
