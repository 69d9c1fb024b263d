// SPDX-License-Identifier: Apache-2.0
//
// The driver's own functions: gcr::real::<symbol>(…) for every line of vendor/hooks.def. Any thread, no lock.
#ifndef GCR_HOOKS_REAL_H
#define GCR_HOOKS_REAL_H

#include "hooks/original.h"
#include "vendor/vendor.h"

namespace gcr {
namespace real {

#define GCR_HOOK(symbol, kind, parameters, arguments) \
    inline constexpr hooks::Original<hooks::k_##symbol, vendor::Result parameters> symbol{};
#include "vendor/hooks.def"
#undef GCR_HOOK

}  // namespace real
}  // namespace gcr

#endif  // GCR_HOOKS_REAL_H
