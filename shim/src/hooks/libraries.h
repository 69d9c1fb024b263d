// SPDX-License-Identifier: Apache-2.0
//
// The vendors' libraries whose symbols are hooked, one row each. All their symbols share one Index; each library's lie
// side by side, sorted by name.
#ifndef GCR_HOOKS_LIBRARIES_H
#define GCR_HOOKS_LIBRARIES_H

#include <stddef.h>

#include "hooks/slots.h"

namespace gcr {
namespace hooks {

struct Library {
    const char* files[3];  // what the names of its files begin with; null: no more
    const char* any;   // a symbol that every version of it has
    bool (*like)(const char* name);  // a symbol of it, by its looks
    Index first, end;
    bool unversioned;  // its symbols have versions of their own; ours are exported without one, and bind to all
    int lacks;   // what a call is answered when the library has no such symbol,
    int absent;  // and when it is not loaded
};

extern const Library libraries[kLibraries];

const Library& library_of(Index index);
const Library* library_like(const char* name);  // null: no vendor's

}  // namespace hooks
}  // namespace gcr

#endif  // GCR_HOOKS_LIBRARIES_H
