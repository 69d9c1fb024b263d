// SPDX-License-Identifier: Apache-2.0
#include "hooks/hip_lookups.h"

#include <string.h>

#include "core/sys.h"
#include "hooks/hip_real.h"
#include "hooks/libraries.h"
#include "hooks/symbols.h"
#include "hooks/unclassified.h"
#include "interpose/lookup.h"

namespace gcr {
namespace hooks {
namespace {

// What the runtime makes of a name: per-thread streams, the layouts of 6.0.
constexpr const char* kSuffixes[] = {"", "_spt", "R0600", "R0000"};
constexpr size_t kLongest = 120;

Index find_given(const char* asked, const void* given) {
    char name[kLongest + sizeof("R0600")];
    size_t length = strlen(asked);
    if (length > kLongest) return kNoSymbol;
    memcpy(name, asked, length);
    for (const char* suffix : kSuffixes) {
        strcpy(name + length, suffix);
        Index index = find_symbol(name);
        if (index != kNoSymbol && wrappers[index] != nullptr && original(index) == given) return index;
    }
    return kNoSymbol;
}

void replace(hipError_t result, const void* caller, const char* asked, void** pfn) {
    if (result != hip_abi::hipSuccess || asked == nullptr || pfn == nullptr || *pfn == nullptr) return;
    KeepErrno keep;
    if (library_like(asked) == nullptr) return;
    Index alone = find_symbol(asked);
    if (alone != kNoSymbol && wrappers[alone] == nullptr) return;
    Index index = find_given(asked, *pfn);
    if (index == kNoSymbol)
        note_unclassified(asked);
    else
        *pfn = interpose::substitute(index, *pfn, caller);
}

}  // namespace

hipError_t answer_hipGetProcAddress(const void* caller, const char* symbol, void** pfn, int version, uint64_t flags,
                                    hip_abi::hipDriverProcAddressQueryResult* status) {
    hipError_t result = real::hipGetProcAddress(symbol, pfn, version, flags, status);
    replace(result, caller, symbol, pfn);
    return result;
}

hipError_t answer_hipGetProcAddress_spt(const void* caller, const char* symbol, void** pfn, int version, uint64_t flags,
                                        hip_abi::hipDriverProcAddressQueryResult* status) {
    hipError_t result = real::hipGetProcAddress_spt(symbol, pfn, version, flags, status);
    replace(result, caller, symbol, pfn);
    return result;
}

hipError_t answer_hipGetDriverEntryPoint(const void* caller, const char* symbol, void** pfn, unsigned long long flags,
                                         void* status) {
    hipError_t result = real::hipGetDriverEntryPoint(symbol, pfn, flags, status);
    replace(result, caller, symbol, pfn);
    return result;
}

hipError_t answer_hipGetDriverEntryPoint_spt(const void* caller, const char* symbol, void** pfn,
                                             unsigned long long flags, void* status) {
    hipError_t result = real::hipGetDriverEntryPoint_spt(symbol, pfn, flags, status);
    replace(result, caller, symbol, pfn);
    return result;
}

}  // namespace hooks
}  // namespace gcr
