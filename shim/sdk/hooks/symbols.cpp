// SPDX-License-Identifier: Apache-2.0
//
// The vendor's library and the names in vendor/hooks.def.
#include "hooks/symbols.h"

#include <string.h>

#include "hooks/libraries.h"
#include "hooks/names.h"
#include "vendor/vendor.h"

namespace gcr {
namespace hooks {
namespace {

constexpr const char* kNames[] = {
#define GCR_HOOK(symbol, ...) #symbol,
#include "vendor/hooks.def"
#undef GCR_HOOK
};

static_assert(are_sorted(kNames, 0, kSymbolCount),
              "vendor/hooks.def is searched by name: every symbol once, in byte order");

bool looks_like_it(const char* name) {
    return strncmp(name, vendor::kPrefix, sizeof vendor::kPrefix - 1) == 0;
}

}  // namespace

const Library libraries[kLibraries] = {{{vendor::kFile},
                                        vendor::kAny,
                                        looks_like_it,
                                        static_cast<Index>(0),
                                        kSymbolCount,
                                        false,
                                        vendor::kLacks,
                                        vendor::kAbsent}};

const Library& library_of(Index) {
    return libraries[0];
}

const Library* library_like(const char* name) {
    return looks_like_it(name) ? libraries : nullptr;
}

Index find_symbol(const char* symbol) {
    return find_name(kNames, 0, kSymbolCount, symbol);
}

const char* name_of(Index index) {
    return kNames[index];
}

}  // namespace hooks
}  // namespace gcr
