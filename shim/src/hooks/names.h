// SPDX-License-Identifier: Apache-2.0
//
// Search by name in a table that lies sorted. Pure; the compiler checks the order of a table.
#ifndef GCR_HOOKS_NAMES_H
#define GCR_HOOKS_NAMES_H

#include <string.h>

#include "hooks/indices.h"

namespace gcr {
namespace hooks {

constexpr int compare(const char* a, const char* b) {
    while (*a != 0 && *a == *b) ++a, ++b;
    return static_cast<unsigned char>(*a) - static_cast<unsigned char>(*b);
}

// Every name once, in byte order.
constexpr bool are_sorted(const char* const* names, int first, int end) {
    for (int i = first + 1; i < end; ++i)
        if (compare(names[i - 1], names[i]) >= 0) return false;
    return true;
}

// The place of `name` in names[first, end); kNoSymbol if it is not there.
inline Index find_name(const char* const* names, int first, int end, const char* name) {
    int low = first, high = end;
    while (low < high) {
        int middle = (low + high) / 2;
        int order = strcmp(names[middle], name);
        if (order == 0) return static_cast<Index>(middle);
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return kNoSymbol;
}

}  // namespace hooks
}  // namespace gcr

#endif  // GCR_HOOKS_NAMES_H
