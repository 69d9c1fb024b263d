// SPDX-License-Identifier: Apache-2.0
//
// One slot a symbol of vendor/hooks.def: what src/hooks/slots.h is in gcr's own shim, for one vendor.
#ifndef GCR_HOOKS_SLOTS_H
#define GCR_HOOKS_SLOTS_H

#include <stdint.h>

#include <atomic>

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

// hidden: read by its address, not by a pointer to it
extern std::atomic<void*> slots[kSymbolCount] __attribute__((visibility("hidden")));
extern void* const wrappers[kSymbolCount];  // what a program is given in place of the symbol

void* publish(Index index, void* address);  // the first address wins; one of ours is refused
void* resolve(Index index);                 // slow; null where neither a preload nor the driver has it
int missing(Index index);                   // the result of a call the driver cannot take

inline void* found_earlier(Index index) {  // null: not asked for yet
    return slots[index].load(std::memory_order_acquire);  // pairs with publish()
}

inline void* original(Index index) {
    void* address = found_earlier(index);
    return __builtin_expect(address != nullptr, 1) ? address : resolve(index);
}

}  // namespace hooks
}  // namespace gcr

#endif  // GCR_HOOKS_SLOTS_H
