// SPDX-License-Identifier: Apache-2.0
//
// One of the driver's own functions, by its index.
//
// Callers  any thread, any time. No lock; the first call looks the function up, later calls load one pointer.
// Answer   what the driver says. Where it has no such symbol, or is not loaded: what missing() gives, which is never seen
//          by a program that could have made the call bare.
// Absence  A caller that must know whether the driver has a symbol asks has_<symbol>() of GCR_REAL first.
#ifndef GCR_HOOKS_ORIGINAL_H
#define GCR_HOOKS_ORIGINAL_H

#include "hooks/slots.h"

namespace gcr {
namespace hooks {

template <Index kIndex, class Signature>
struct Original;

template <Index kIndex, class Result, class... P>
struct Original<kIndex, Result(P...)> {
    using Function = Result (*)(P...);

    Result operator()(P... arguments) const {
        Function function = reinterpret_cast<Function>(original(kIndex));
        return __builtin_expect(function != nullptr, 1) ? function(arguments...) : static_cast<Result>(missing(kIndex));
    }

    Function found() const { return reinterpret_cast<Function>(found_earlier(kIndex)); }
};

}  // namespace hooks
}  // namespace gcr

// A symbol of a list, for <vendor>_real.h. A vendor's file reads its own list alone: to parse all three takes 0.3 s.
#define GCR_REAL(symbol, Result, parameters)                                                   \
    inline constexpr gcr::hooks::Original<gcr::hooks::k_##symbol, Result parameters> symbol{}; \
    inline bool has_##symbol() {                                                               \
        return gcr::hooks::original(gcr::hooks::k_##symbol) != nullptr;                        \
    }

#endif  // GCR_HOOKS_ORIGINAL_H
