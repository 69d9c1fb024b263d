// SPDX-License-Identifier: Apache-2.0
//
// hipGetProcAddress and its kin: the runtime is asked first, and its answer replaced by the wrapper of the very function
// it gave, known by its address. An address the list cannot name is handed on, and its name counted as unclassified.
// Any thread; not gated (a lookup neither enqueues nor waits); errno is kept.
#ifndef GCR_HOOKS_HIP_LOOKUPS_H
#define GCR_HOOKS_HIP_LOOKUPS_H

#include "abi/hip.h"

namespace gcr {
namespace hooks {

using hip_abi::hipError_t;

hipError_t answer_hipGetProcAddress(const void* caller, const char* symbol, void** pfn, int version, uint64_t flags,
                                    hip_abi::hipDriverProcAddressQueryResult* status);
hipError_t answer_hipGetProcAddress_spt(const void* caller, const char* symbol, void** pfn, int version, uint64_t flags,
                                        hip_abi::hipDriverProcAddressQueryResult* status);
hipError_t answer_hipGetDriverEntryPoint(const void* caller, const char* symbol, void** pfn, unsigned long long flags,
                                         void* status);
hipError_t answer_hipGetDriverEntryPoint_spt(const void* caller, const char* symbol, void** pfn,
                                             unsigned long long flags, void* status);

}  // namespace hooks
}  // namespace gcr

#endif  // GCR_HOOKS_HIP_LOOKUPS_H
