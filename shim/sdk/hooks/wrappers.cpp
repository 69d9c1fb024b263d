// SPDX-License-Identifier: Apache-2.0
//
// One exported function a line of vendor/hooks.def. They are the launch path of the user's program: no lock, no
// allocation, nothing but the gate and the call.
#include "core/inside.h"
#include "hooks/calls.h"
#include "hooks/export.h"
#include "hooks/real.h"

using gcr::vendor::Result;
namespace real = gcr::real;

#define GCR_EXPORT(symbol, parameters) GCR_EXPORT_AS(Result, symbol, parameters)

#define GCR_WRAP_ALLOCATE(symbol, parameters, arguments) \
    GCR_ALLOCATE_INSIDE(vendor, gcr::reentered, symbol, parameters, arguments)

#define GCR_WRAP_ENQUEUE(symbol, parameters, arguments) \
    GCR_CALL_INSIDE(gcr::GateEntry, Result, symbol, parameters, arguments)

// Never gated: the wait of one thread may be what another's work is for.
#define GCR_WRAP_PASSIVE(symbol, parameters, arguments) \
    GCR_CALL_INSIDE(gcr::PassiveEntry, Result, symbol, parameters, arguments)

#define GCR_HOOK(symbol, kind, parameters, arguments) GCR_WRAP_##kind(symbol, parameters, arguments)
#include "vendor/hooks.def"
#undef GCR_HOOK

namespace gcr {
namespace hooks {

void* const wrappers[kSymbolCount] = {
#define GCR_HOOK(symbol, ...) reinterpret_cast<void*>(gcr_wrap_##symbol),
#include "vendor/hooks.def"
#undef GCR_HOOK
};

}  // namespace hooks
}  // namespace gcr
