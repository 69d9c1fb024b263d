// SPDX-License-Identifier: Apache-2.0
//
// One slot a driver symbol: the address of the driver's own function, or of a user's preload that follows us.
//
// Writer   publish() alone: the first address wins and stays; an address inside this library is refused, else a driver
//          that looks up its own name would have us call ourselves for ever.
// Readers  any thread, one acquire load.
#ifndef GCR_HOOKS_SLOTS_H
#define GCR_HOOKS_SLOTS_H

#include <atomic>

#include "hooks/indices.h"

namespace gcr {
namespace hooks {

// hidden: read by its address, not by a pointer to it
extern std::atomic<void*> slots[kSymbolCount] __attribute__((visibility("hidden")));

// The wrapper a program is given in place of the symbol; null for a symbol left alone.
extern void* const wrappers[kSymbolCount];

void* publish(Index index,
              void* address);  // what the slot holds now; null where `address` was refused and nothing was there
__attribute__((cold, noinline)) void* resolve(
    Index index);  // RTLD_NEXT, then the vendor's library if it is loaded; null if neither has it
__attribute__((cold, noinline)) int missing(Index index);  // the result of a call the driver cannot take

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
