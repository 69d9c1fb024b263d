// SPDX-License-Identifier: Apache-2.0
//
// Driver symbols a program was given that cuda.def does not know: a driver newer than the list. Shown by `gcr ps`.
// Any thread; no allocation.
#ifndef GCR_HOOKS_UNCLASSIFIED_H
#define GCR_HOOKS_UNCLASSIFIED_H

#include <stdint.h>

namespace gcr {
namespace hooks {

void note_unclassified(const char* name);

uint32_t unclassified_count();  // distinct names, as far as the table holds them; then lookups
const char* unclassified_name(uint32_t position);  // null past the end

}  // namespace hooks
}  // namespace gcr

#endif  // GCR_HOOKS_UNCLASSIFIED_H
