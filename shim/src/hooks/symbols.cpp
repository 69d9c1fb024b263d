// SPDX-License-Identifier: Apache-2.0
#include "hooks/symbols.h"

#include <string.h>

#include "hooks/libraries.h"
#include "hooks/names.h"

namespace gcr {
namespace hooks {
namespace {

constexpr const char* kNames[] = {
#define GCR_HOOK(symbol, ...) #symbol,
#define GCR_ALONE(symbol, ...) #symbol,
#include "hooks/cuda.def"
#define GCR_HOOK(symbol, ...) #symbol,
#define GCR_ALONE(symbol, ...) #symbol,
#include "hooks/hip.def"
#define GCR_HOOK(symbol, ...) #symbol,
#define GCR_ALONE(symbol, ...) #symbol,
#include "hooks/acl.def"
};

struct Variant {
    const char* base;
    int version;
    int stream;
    Index index;
};

constexpr Variant kListed[] = {
#define GCR_HOOK(symbol, base, version, stream, kind, parameters, arguments) {#base, version, stream, k_##symbol},
#define GCR_ALONE(symbol, base, version, stream) {#base, version, stream, k_##symbol},
#define GCR_ALIAS(symbol, base, version, stream) {#base, version, stream, k_##symbol},
#include "hooks/cuda.def"
};
constexpr int kVariantCount = sizeof(kListed) / sizeof(kListed[0]);

constexpr bool before(const Variant& a, const Variant& b) {
    int order = compare(a.base, b.base);
    if (order != 0) return order < 0;
    return a.version != b.version ? a.version < b.version : a.stream < b.stream;
}

struct Variants {
    Variant at[kVariantCount];
};

constexpr Variants sorted() {
    Variants out{};
    for (int i = 0; i < kVariantCount; ++i) {  // nearly sorted already
        int j = i;
        for (; j > 0 && before(kListed[i], out.at[j - 1]); --j) out.at[j] = out.at[j - 1];
        out.at[j] = kListed[i];
    }
    return out;
}

constexpr bool newest_version_is_right() {
    int newest = 0;
    for (const Variant& variant : kListed)
        if (variant.version > newest) newest = variant.version;
    return newest == kNewestVersion;
}

static_assert(are_sorted(kNames, kCudaFirst, kCudaEnd),
              "cuda.def is searched by name: every symbol once, in byte order");
static_assert(are_sorted(kNames, kAclFirst, kAclEnd), "acl.def is searched by name: every symbol once, in byte order");
static_assert(are_sorted(kNames, kHipFirst, kHipEnd), "hip.def is searched by name: every symbol once, in byte order");
static_assert(newest_version_is_right(), "kNewestVersion follows cuda.def");
constexpr Variants kVariants = sorted();

// The first variant of `base`, or of what would come after it.
int first_of(const char* base) {
    int low = 0, high = kVariantCount;
    while (low < high) {
        int middle = (low + high) / 2;
        if (strcmp(kVariants.at[middle].base, base) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

bool is_of(int position, const char* base) {
    return position < kVariantCount && strcmp(kVariants.at[position].base, base) == 0;
}

}  // namespace

Index find_symbol(const char* symbol) {
    const Library* library = library_like(symbol);
    if (library == nullptr) return kNoSymbol;
    return find_name(kNames, library->first, library->end, symbol);
}

Index find_variant(const char* base, int version, bool per_thread) {
    Index best = kNoSymbol;
    for (int i = first_of(base); is_of(i, base); ++i) {
        const Variant& variant = kVariants.at[i];
        if (variant.version <= version && (variant.stream == 0 || per_thread)) best = variant.index;
    }
    return best;
}

bool knows_base(const char* base) {
    return is_of(first_of(base), base);
}

const char* name_of(Index index) {
    return kNames[index];
}

}  // namespace hooks
}  // namespace gcr
