// SPDX-License-Identifier: Apache-2.0
#include "hooks/proc_address.h"

#include <string.h>

#include <initializer_list>

#include "core/sys.h"
#include "hooks/cuda_real.h"
#include "hooks/libraries.h"
#include "hooks/symbols.h"
#include "hooks/unclassified.h"
#include "interpose/lookup.h"

namespace gcr {
namespace hooks {
namespace {

using cuda_abi::CUDA_SUCCESS;
using cuda_abi::CUresult;

struct Question {
    const void* caller;
    const char* name;
    int version;
    uint64_t flags;
    bool per_thread() const { return (flags & cuda_abi::CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0; }
};

// Asked by a symbol's whole name ("cuMemAlloc_v2"), which drivers may or may not answer.
Index find_whole_name(const Question& asked) {
    constexpr size_t kLongest = 120;
    char name[kLongest + sizeof("_ptds")];
    size_t length = strlen(asked.name);
    if (!asked.per_thread() || length > kLongest) return find_symbol(asked.name);
    memcpy(name, asked.name, length);
    for (const char* suffix : {"_ptds", "_ptsz"}) {
        memcpy(name + length, suffix, sizeof("_ptds"));
        Index index = find_symbol(name);
        if (index != kNoSymbol) return index;
    }
    return find_symbol(asked.name);
}

Index find_asked(const Question& asked) {
    return knows_base(asked.name) ? find_variant(asked.name, asked.version, asked.per_thread())
                                  : find_whole_name(asked);
}

// A caller newer than the list may have been given an ABI the list has never seen. Then the driver gives another
// address for the newest version the list knows.
template <class Ask>
bool is_newer_than_the_list(const Question& asked, const void* given, Ask ask) {
    if (asked.version <= kNewestVersion) return false;
    void* known = nullptr;
    return ask(asked.name, &known, kNewestVersion, asked.flags) != CUDA_SUCCESS || known != given;
}

template <class Ask>
void* replacement(const Question& asked, void* given, Ask ask) {
    if (library_like(asked.name) == nullptr) return given;
    Index index = find_asked(asked);
    if (index == kNoSymbol || is_newer_than_the_list(asked, given, ask)) {
        note_unclassified(asked.name);
        return given;
    }
    if (wrappers[index] == nullptr) return given;
    interpose::prepare(index);
    return interpose::substitute(index, given, asked.caller);
}

}  // namespace

CUresult answer_cuGetProcAddress(const void* caller, const char* symbol, void** pfn, int version, uint64_t flags) {
    CUresult result = real::cuGetProcAddress(symbol, pfn, version, flags);
    if (result != CUDA_SUCCESS || symbol == nullptr || pfn == nullptr || *pfn == nullptr) return result;
    KeepErrno keep;
    *pfn = replacement({caller, symbol, version, flags}, *pfn, real::cuGetProcAddress);
    return result;
}

CUresult answer_cuGetProcAddress_v2(const void* caller, const char* symbol, void** pfn, int version, uint64_t flags,
                                    cuda_abi::CUdriverProcAddressQueryResult* status) {
    CUresult result = real::cuGetProcAddress_v2(symbol, pfn, version, flags, status);
    if (result != CUDA_SUCCESS || symbol == nullptr || pfn == nullptr || *pfn == nullptr) return result;
    KeepErrno keep;
    auto ask = [](const char* name, void** out, int at, uint64_t how) {
        return real::cuGetProcAddress_v2(name, out, at, how, nullptr);
    };
    *pfn = replacement({caller, symbol, version, flags}, *pfn, ask);
    return result;
}

}  // namespace hooks
}  // namespace gcr
