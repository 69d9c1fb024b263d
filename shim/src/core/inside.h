// SPDX-License-Identifier: Apache-2.0
//
// The launch path: a driver's function called inside an Entry of core/gate.h. A wrapper that other code has pushed out of
// the caches costs by its cache lines, some twenty times what it costs in a loop; so it is one or two.
#ifndef GCR_CORE_INSIDE_H
#define GCR_CORE_INSIDE_H

#include "core/gate.h"

namespace gcr {

struct Undescribed {
    template <class... P>
    static constexpr bool launches() {
        return false;
    }
    template <class... P>
    Call operator()(P...) const {
        return {};
    }
};

// original: of hooks/real.h. slowly: a function of the wrapper's own signature, which finds the arguments where they are
// and does whatever has to be done before the call. Arguments on the stack would be copied for it at every call.
// describe: what else an Entry wants to know that is slow, of the same arguments.
template <class Entry, class Original, class Describe, class... P>
__attribute__((always_inline)) inline auto call_inside(Original original, typename Original::Function slowly,
                                                       Describe describe, P... arguments) {
    constexpr size_t kInRegisters = 6;  // of an x86-64 call
    constexpr bool kLaunches = Describe::template launches<P...>();
    if constexpr (sizeof...(P) > kInRegisters) {
        Entry inside([&] { return describe(arguments...); }, kLaunches);
        return original(arguments...);
    } else {
        auto function = original.found();
        Slot* slot = __builtin_expect(function != nullptr, 1) ? Entry::pass(kLaunches) : nullptr;
        if (__builtin_expect(slot == nullptr, 0)) return slowly(arguments...);
        auto result = function(arguments...);
        Entry::leave(slot);
        return result;
    }
}

}  // namespace gcr

// The wrapper of `symbol`, made by GCR_EXPORT. describe: a function object that makes a Call of the arguments.
#define GCR_CALL_DESCRIBED(Entry, Result, describe, symbol, parameters, arguments)                              \
    __attribute__((cold, noinline)) static Result slowly_##symbol parameters {                                  \
        Entry inside(gcr::Slowly{}, describe arguments);                                                        \
        return gcr::real::symbol arguments;                                                                     \
    }                                                                                                           \
    GCR_EXPORT(symbol, parameters) {                                                                            \
        return gcr::call_inside<Entry>(gcr::real::symbol, slowly_##symbol, describe GCR_FOLLOWED_BY arguments); \
    }
#define GCR_CALL_INSIDE(Entry, Result, symbol, parameters, arguments) \
    GCR_CALL_DESCRIBED(Entry, Result, gcr::Undescribed{}, symbol, parameters, arguments)
#define GCR_FOLLOWED_BY(...) __VA_OPT__(, ) __VA_ARGS__

#endif  // GCR_CORE_INSIDE_H
