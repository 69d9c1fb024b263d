// SPDX-License-Identifier: Apache-2.0
//
// The driver's own functions: gcr::real::<symbol>(…) for every line of vendor/hooks.def. Any thread, no lock.
#ifndef GCR_HOOKS_REAL_H
#define GCR_HOOKS_REAL_H

#include "hooks/slots.h"
#include "vendor/vendor.h"

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

namespace real {

#define GCR_HOOK(symbol, kind, parameters, arguments) \
    inline constexpr hooks::Original<hooks::k_##symbol, vendor::Result parameters> symbol{};
#include "vendor/hooks.def"
#undef GCR_HOOK

}  // namespace real
}  // namespace gcr

#endif  // GCR_HOOKS_REAL_H
