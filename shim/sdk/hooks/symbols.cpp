// SPDX-License-Identifier: Apache-2.0
//
// The vendor's library and the names in vendor/hooks.def.
#include "hooks/symbols.h"

#include <string.h>

#include "hooks/libraries.h"
#include "vendor/vendor.h"

namespace gcr {
namespace hooks {
namespace {

constexpr const char* kNames[] = {
#define GCR_HOOK(symbol, ...) #symbol,
#include "vendor/hooks.def"
#undef GCR_HOOK
};

constexpr int compare(const char* a, const char* b) {
    while (*a != 0 && *a == *b) ++a, ++b;
    return static_cast<unsigned char>(*a) - static_cast<unsigned char>(*b);
}

constexpr bool sorted() {
    for (int i = 1; i < kSymbolCount; ++i)
        if (compare(kNames[i - 1], kNames[i]) >= 0) return false;
    return true;
}
static_assert(sorted(), "vendor/hooks.def is searched by name: every symbol once, in byte order");

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
    int low = 0, high = kSymbolCount;
    while (low < high) {
        int middle = (low + high) / 2;
        int order = strcmp(kNames[middle], symbol);
        if (order == 0) return static_cast<Index>(middle);
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return kNoSymbol;
}

const char* name_of(Index index) {
    return kNames[index];
}

}  // namespace hooks
}  // namespace gcr
