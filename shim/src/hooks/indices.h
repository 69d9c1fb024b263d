// SPDX-License-Identifier: Apache-2.0
//
// The number of each driver symbol, over the lists of gcr's own vendors. sdk/hooks/indices.h stands in for this file in a
// shim of another vendor.
#ifndef GCR_HOOKS_INDICES_H
#define GCR_HOOKS_INDICES_H

#include <stdint.h>

namespace gcr {
namespace hooks {

// Every symbol of every vendor's list, in the order of libraries.h.
enum Index : uint16_t {
#define GCR_HOOK(symbol, ...) k_##symbol,
#define GCR_ALONE(symbol, ...) k_##symbol,
#include "hooks/cuda.def"
    kCudaEnd,
    kCudaFirst = 0,
    kBeforeHip = kCudaEnd - 1,  // enumerators count on from here
#define GCR_HOOK(symbol, ...) k_##symbol,
#define GCR_ALONE(symbol, ...) k_##symbol,
#include "hooks/hip.def"
    kHipEnd,
    kHipFirst = kCudaEnd,
    kBeforeAcl = kHipEnd - 1,
#define GCR_HOOK(symbol, ...) k_##symbol,
#define GCR_ALONE(symbol, ...) k_##symbol,
#include "hooks/acl.def"
    kAclEnd,
    kAclFirst = kHipEnd,
    kSymbolCount = kAclEnd,
    kNoSymbol = 0xffff,
};
constexpr int kLibraries = 3;

}  // namespace hooks
}  // namespace gcr

#endif  // GCR_HOOKS_INDICES_H
