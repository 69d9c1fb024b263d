// SPDX-License-Identifier: Apache-2.0
//
// The driver's own functions: gcr::real::<symbol>(…) for every GCR_HOOK of the lists.
//
// Callers  any thread, any time. No lock; the first call of a symbol looks it up, later calls load one pointer.
// Answer   what the driver says. Where it has no such symbol, or is not loaded: what libraries.cpp says, which is never
//          seen by a program that could have made the call bare.
// Ask      gcr::real::has_<symbol>() before a call whose absence matters.
#ifndef GCR_HOOKS_REAL_H
#define GCR_HOOKS_REAL_H

#include "abi/acl.h"
#include "abi/cuda.h"
#include "abi/hip.h"
#include "hooks/original.h"

namespace gcr {
namespace real {

using namespace cuda_abi;
using namespace hip_abi;
using namespace acl_abi;

#define GCR_REAL(symbol, Result, parameters)                                         \
    inline constexpr hooks::Original<hooks::k_##symbol, Result parameters> symbol{}; \
    inline bool has_##symbol() {                                                     \
        return hooks::original(hooks::k_##symbol) != nullptr;                        \
    }
#define GCR_HOOK(symbol, base, version, stream, kind, parameters, arguments) GCR_REAL(symbol, CUresult, parameters)
#include "hooks/cuda.def"
#define GCR_HOOK(symbol, kind, parameters, arguments) GCR_REAL(symbol, hipError_t, parameters)
#include "hooks/hip.def"
#define GCR_HOOK(symbol, kind, parameters, arguments) GCR_REAL(symbol, aclError, parameters)
#include "hooks/acl.def"
#undef GCR_REAL

}  // namespace real
}  // namespace gcr

#endif  // GCR_HOOKS_REAL_H
