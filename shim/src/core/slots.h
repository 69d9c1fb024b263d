// SPDX-License-Identifier: Apache-2.0
//
// Slots: one cache line a thread, in which it counts its calls. The gate (core/gate.h) has the rules.
//
// List     append-only for the life of the process. A thread takes a slot with its first call and gives it back at its
//          exit, also by cancellation; another thread takes it then.
// Debts    a thread may be answered for a call that has still to be made. Its slot is hidden from the fast way until then.
#ifndef GCR_CORE_SLOTS_H
#define GCR_CORE_SLOTS_H

#include <stddef.h>
#include <stdint.h>

#include <atomic>

namespace gcr {

enum Look : uint32_t {
    kGo = 0,
    kWatch = 1,  // the gate is open, and launches of coupled kernels are counted: other calls go on
    kLookCloser = 2,  // the gate is closed, or calls are frozen, or no thread fences for all
    kFresh = 3,  // a slot that was told nothing yet
};

enum Parking : uint32_t {
    kNotParked = 0,
    kParked = 1,
    kAdmitted = 2,  // the agent let a parked thread through; counts as in flight from that instant
};

constexpr size_t kCacheLine = 64;

struct alignas(kCacheLine) Slot {
    // The owning thread writes these four; the agent reads them.
    std::atomic<uint32_t> depth{0};  // gated calls it is in; 0 while parked
    std::atomic<uint32_t> passive{0};  // calls it is in that the gate does not stop; 0 while it waits for the thaw
    std::atomic<uint64_t> calls{0};  // gated ones so far
    std::atomic<uint32_t> aside{0};  // 1: inside a call for good, and never in flight
    std::atomic<uint32_t> look{kFresh};  // a Look; the agent writes it
    std::atomic<uint32_t> parking{kNotParked};  // futex word
    std::atomic<uint32_t> taken{0};
    Slot* next = nullptr;  // set before the slot is published, never changed
    // The call that the owner waits with. The owner writes these before `parking`.
    std::atomic<uint64_t> signature{0};
    std::atomic<uint64_t> stream{0};
    uint32_t number = 0;  // set before the slot is published, never changed
    std::atomic<uint32_t> helper{0};  // Helper
};
static_assert(sizeof(Slot) == kCacheLine, "a thread's own line");

extern __thread Slot* thread_slot __attribute__((tls_model("initial-exec"), visibility("hidden")));

// A thread that work or calls of others wait for: a communication library's own, or ours.
enum Helper : uint32_t { kNone = 0, kALibrarys = 1, kOurs = 2 };

// Returns the slot of the calling thread, which takes one if it has none. Null only where memory is exhausted.
Slot* own_slot();

// Returns the newest slot; `next` leads to the others. A slot that is published later is not found.
Slot* newest_slot();

template <typename Visit>
void each_slot(Visit visit) {
    for (Slot* slot = newest_slot(); slot != nullptr; slot = slot->next) visit(slot);
}

template <typename Matches>
uint32_t count_slots(Matches matches) {
    uint32_t count = 0;
    each_slot([&](Slot* slot) { count += matches(slot) ? 1 : 0; });
    return count;
}

// True inside a gated call of this thread: whatever is called now comes from the driver or from us.
inline bool reentered() {
    return thread_slot != nullptr && thread_slot->depth.load(std::memory_order_relaxed) != 0;
}

// True inside any call of this thread, gated or passive. A runtime that calls its own exports from a call that waits
// must not be parked: the agent may be waiting for that call.
inline bool inside_a_call() {
    return reentered() || (thread_slot != nullptr && thread_slot->passive.load(std::memory_order_relaxed) != 0);
}

// The calling thread, outside of any call, was answered for a call that has still to be made: `owed` makes it, in the
// thread's next call that reaches the driver.
void owe(void (*owed)());

// By a thread that is counted in, and may call the driver: makes the call that it owes.
void pay();

// In the child of a fork: its driver is owed nothing.
void forget_debt();

// A count that its thread alone changes, a signal handler on it included: that leaves it as it found it.
__attribute__((always_inline)) inline void count_out(std::atomic<uint32_t>& count) {
    // release: what the call did is visible to an agent that finds the count at 0
    count.store(count.load(std::memory_order_relaxed) - 1, std::memory_order_release);
}

// False: not counted, look closer. most: the last Look with which the call goes on.
__attribute__((always_inline)) inline bool count_in(Slot* slot, std::atomic<uint32_t>& count, Look most) {
    uint32_t before = count.load(std::memory_order_relaxed);
    count.store(before + 1, std::memory_order_relaxed);
    std::atomic_signal_fence(std::memory_order_seq_cst);  // pairs with the agent's process-wide fence
    // acquire: what the agent did before it let calls through is visible to them
    if (__builtin_expect(slot->look.load(std::memory_order_acquire) <= most, 1)) return true;
    count.store(before, std::memory_order_release);
    return false;
}

}  // namespace gcr

#endif  // GCR_CORE_SLOTS_H
