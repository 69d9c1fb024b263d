// SPDX-License-Identifier: Apache-2.0
//
// One of the driver's own functions, by its index. Any thread, no lock: the first call looks the function up, later calls
// load one pointer. A call that the driver cannot take has the result that missing() gives.
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

#endif  // GCR_HOOKS_ORIGINAL_H
