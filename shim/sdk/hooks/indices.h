// SPDX-License-Identifier: Apache-2.0
//
// The number of each symbol of vendor/hooks.def, for the one library of the vendor.
#ifndef GCR_HOOKS_INDICES_H
#define GCR_HOOKS_INDICES_H

#include <stdint.h>

namespace gcr {
namespace hooks {

enum Index : uint16_t {
#define GCR_HOOK(symbol, ...) k_##symbol,
#include "vendor/hooks.def"
#undef GCR_HOOK
    kSymbolCount,
    kNoSymbol = 0xffff,
};
constexpr int kLibraries = 1;

}  // namespace hooks
}  // namespace gcr

#endif  // GCR_HOOKS_INDICES_H
