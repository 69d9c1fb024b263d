// SPDX-License-Identifier: Apache-2.0
//
// One slot a driver symbol: the address of the driver's own function, or of a user's preload that follows us.
//
// Writer   publish() alone: the first address wins and stays; an address inside this library is refused, else a driver
//          that looks up its own name would have us call ourselves for ever.
// Readers  any thread, one acquire load.
#ifndef GCR_HOOKS_SLOTS_H
#define GCR_HOOKS_SLOTS_H

#include <stdint.h>

#include <atomic>

namespace gcr {
namespace hooks {

enum Index : uint16_t {
#define GCR_HOOK(symbol, base, version, stream, kind, parameters, arguments) k_##symbol,
#define GCR_ALONE(symbol, base, version, stream) k_##symbol,
#include "hooks/cuda.def"
    kSymbolCount,
    kNoSymbol = 0xffff,
};

extern std::atomic<void*> slots[kSymbolCount];

// The wrapper a program is given in place of the symbol; null for a symbol left alone.
extern void* const wrappers[kSymbolCount];

void* publish(Index index,
              void* address);  // what the slot holds now; null where `address` was refused and nothing was there
void* resolve(Index index);  // slow: RTLD_NEXT, then libcuda.so.1 if it is loaded; null if neither has it
int missing();  // the CUresult of a call the driver cannot take

inline void* original(Index index) {
    void* address = slots[index].load(std::memory_order_acquire);  // pairs with publish()
    return __builtin_expect(address != nullptr, 1) ? address : resolve(index);
}

}  // namespace hooks
}  // namespace gcr

#endif  // GCR_HOOKS_SLOTS_H
