// SPDX-License-Identifier: Apache-2.0
//
// The driver's own functions: gcr::real::<symbol>(…) for every GCR_HOOK of cuda.def.
//
// Who      any thread, any time. No lock; the first call of a symbol looks it up, later calls load one pointer.
// Answer   what the driver says. CUDA_ERROR_NOT_FOUND where the driver has no such symbol, CUDA_ERROR_STUB_LIBRARY where
//          no driver is loaded; neither is ever seen by a program that could have made the call bare.
// Ask      gcr::real::has_<symbol>() before a call whose absence matters.
#ifndef GCR_HOOKS_REAL_H
#define GCR_HOOKS_REAL_H

#include "abi/cuda.h"
#include "hooks/slots.h"

namespace gcr {
namespace hooks {

template <Index kIndex, class Signature>
struct Original;

template <Index kIndex, class... P>
struct Original<kIndex, cuda_abi::CUresult(P...)> {
    cuda_abi::CUresult operator()(P... arguments) const {
        using Function = cuda_abi::CUresult (*)(P...);
        Function function = reinterpret_cast<Function>(original(kIndex));
        return __builtin_expect(function != nullptr, 1) ? function(arguments...) : missing();
    }
};

}  // namespace hooks

namespace real {

using namespace cuda_abi;

#define GCR_REAL(symbol, parameters)                                                   \
    inline constexpr hooks::Original<hooks::k_##symbol, CUresult parameters> symbol{}; \
    inline bool has_##symbol() {                                                       \
        return hooks::original(hooks::k_##symbol) != nullptr;                          \
    }
#define GCR_HOOK(symbol, base, version, stream, kind, parameters, arguments) GCR_REAL(symbol, parameters)
#include "hooks/cuda.def"
#undef GCR_REAL

}  // namespace real
}  // namespace gcr

#endif  // GCR_HOOKS_REAL_H
