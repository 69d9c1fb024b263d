// SPDX-License-Identifier: Apache-2.0
//
// What the wrappers call: gcr::vendor::on_<symbol>, one for every ALLOCATE line of vendor/hooks.def. The vendor's half
// defines them. Called in flight (the gate is open and knows), never from inside the shim or the driver.
#ifndef GCR_HOOKS_CALLS_H
#define GCR_HOOKS_CALLS_H

#include "vendor/vendor.h"

namespace gcr {
namespace vendor {

#define GCR_ON_ALLOCATE(symbol, parameters) Result on_##symbol parameters;
#define GCR_ON_ENQUEUE(symbol, parameters)
#define GCR_ON_PASSIVE(symbol, parameters)
#define GCR_HOOK(symbol, kind, parameters, arguments) GCR_ON_##kind(symbol, parameters)
#include "vendor/hooks.def"
#undef GCR_HOOK
#undef GCR_ON_ALLOCATE
#undef GCR_ON_ENQUEUE
#undef GCR_ON_PASSIVE

}  // namespace vendor
}  // namespace gcr

#endif  // GCR_HOOKS_CALLS_H
