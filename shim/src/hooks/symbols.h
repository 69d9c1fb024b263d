// SPDX-License-Identifier: Apache-2.0
//
// Finding a driver symbol of the lists by its name, or by what cuGetProcAddress is asked for.
// Pure: tables sorted by the compiler, binary search, no allocation, no lock.
#ifndef GCR_HOOKS_SYMBOLS_H
#define GCR_HOOKS_SYMBOLS_H

#include "hooks/slots.h"

namespace gcr {
namespace hooks {

// The CUDA version of the header cuda.def was made from: an ABI newer than this is not in the table.
constexpr int kNewestVersion = 13050;

Index find_symbol(const char* symbol);  // "cuMemcpyHtoD_v2_ptds"; kNoSymbol if the list has no such line

// Which variant of `base` cuGetProcAddress gives: the newest not newer than `version`, and the per-thread stream's where
// that was asked for (`per_thread`) and exists. kNoSymbol if the list cannot tell.
Index find_variant(const char* base, int version, bool per_thread);

bool knows_base(const char* base);
const char* name_of(Index index);

}  // namespace hooks
}  // namespace gcr

#endif  // GCR_HOOKS_SYMBOLS_H
