// SPDX-License-Identifier: Apache-2.0
//
// The head of a wrapper: a function gcr_wrap_<symbol>, exported under the driver's name (see exports.map).
#ifndef GCR_HOOKS_EXPORT_H
#define GCR_HOOKS_EXPORT_H

#include "core/inside.h"

#define GCR_WRAPPER(Result, symbol, parameters) \
    extern "C" __attribute__((visibility("default"), aligned(gcr::kCacheLine))) Result gcr_wrap_##symbol parameters

#define GCR_EXPORT_AS(Result, symbol, parameters)                   \
    __asm__(".symver gcr_wrap_" #symbol ", " #symbol "@GCR_HOOKS"); \
    GCR_WRAPPER(Result, symbol, parameters)

// Inside a gated call the caller is the driver or the shim: it wants the driver, untranslated.
#define GCR_ALLOCATE_INSIDE(vendor, inside, symbol, parameters, arguments) \
    GCR_EXPORT(symbol, parameters) {                                       \
        if (inside()) return real::symbol arguments;                       \
        gcr::GateEntry in_flight;                                          \
        return gcr::vendor::on_##symbol arguments;                         \
    }

#endif  // GCR_HOOKS_EXPORT_H
