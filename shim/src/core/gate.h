// SPDX-License-Identifier: Apache-2.0
//
// The gate: calls that enqueue work or change allocations mark themselves in flight here and wait while it is closed.
//
// Who      any thread, through GateEntry; the agent alone closes, pulses and opens.
// Cost     open gate, after a thread's first call: a few ns, no lock, no allocation, no system call.
// Ordering a thread stores its mark, then loads `closed`; the agent stores `closed`, then loads the marks. One of the
//          two must see the other: seq_cst on both sides, or a plain store here and a process-wide fence there.
// Slots    one cache line a thread, in an append-only list; given back at thread exit (also by cancellation), reused.
// Never    waits with the mark set; waits in a nested call.
// Signals  a handler that runs on a waiting thread is in no call; one that runs on a thread inside the driver is part of
//          that call.
// Frozen   while the control state is with the driver's checkpoint no call at all may be inside the driver: r580 lets
//          some through its own lock (cuStreamSynchronize) and the program dies of it. Calls that never enqueue carry
//          a mark of their own, PassiveEntry, and wait only for that.
#ifndef GCR_CORE_GATE_H
#define GCR_CORE_GATE_H

#include <stdint.h>

#include <atomic>

namespace gcr {

enum SlotState : uint32_t {
    kIdle = 0,
    kInFlight = 1,
    kParked = 2,
    kAdmitted = 3,  // the agent let a parked thread through; counts as in flight from that instant
};

struct alignas(64) Slot {
    std::atomic<uint32_t> state{kIdle};
    uint32_t depth = 0;  // the owning thread alone
    std::atomic<uint64_t> calls{0};  // the owning thread writes; STATUS reads, sampled
    std::atomic<uint32_t> taken{0};
    std::atomic<uint32_t> passive{0};  // 1: inside a call that the gate does not stop
    uint32_t passive_depth = 0;  // the owning thread alone
    Slot* next = nullptr;  // set before the slot is published, never changed
};

extern __thread Slot* thread_slot __attribute__((tls_model("initial-exec"), visibility("hidden")));
// Every call reads these and hardly anybody writes them: a cache line of their own.
struct alignas(64) GateWords {
    std::atomic<uint32_t> closed{0};
    std::atomic<uint32_t> frozen{0};  // futex word: 1 while frozen
    std::atomic<uint32_t> fenced{0};  // 1: the agent fences for all
};
extern GateWords gate_words __attribute__((visibility("hidden")));

// Cold: their calls are kept out of the wrappers' own cache lines. A wrapper that other code has pushed out of the caches
// costs by its lines, some twenty times what it costs in a loop.
__attribute__((cold, noinline)) Slot*
attach_slot();  // once a thread; null only when memory is exhausted: then the call is ungated
__attribute__((cold, noinline)) void enter_closed_gate(Slot* slot);
__attribute__((cold, noinline)) void wait_while_frozen(Slot* slot);

// True inside a gated call of this thread: whatever is called now comes from the driver or from us.
inline bool reentered() {
    return thread_slot != nullptr && thread_slot->depth != 0;
}

// True inside any call of this thread, gated or passive. A runtime that calls its own exports from a call that waits
// must not be parked: the agent may be waiting for that call.
inline bool inside_a_call() {
    return thread_slot != nullptr && (thread_slot->depth != 0 || thread_slot->passive_depth != 0);
}

// The calling thread is ours: whatever a runtime calls of its own exports on it goes straight on, gate closed or not.
void stand_aside();

// In flight for as long as it lives. Made before the driver is called, in every ALLOCATE and ENQUEUE wrapper.
class GateEntry {
  public:
    __attribute__((always_inline)) GateEntry() : slot_(thread_slot) {
        if (__builtin_expect(slot_ == nullptr, 0)) slot_ = attach_slot();
        if (slot_ != nullptr && slot_->depth++ == 0) enter();
    }
    __attribute__((always_inline)) ~GateEntry() {
        // release: what the call did is visible to an agent that finds the slot idle
        if (slot_ != nullptr && --slot_->depth == 0) slot_->state.store(kIdle, std::memory_order_release);
    }
    GateEntry(const GateEntry&) = delete;
    GateEntry& operator=(const GateEntry&) = delete;

  private:
    __attribute__((always_inline)) void enter() {
        slot_->calls.store(slot_->calls.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
        // pairs with close_gate(): it stores gate_words.closed, fences, and reads this state
        if (__builtin_expect(gate_words.fenced.load(std::memory_order_relaxed) != 0, 1)) {
            slot_->state.store(kInFlight, std::memory_order_relaxed);
            std::atomic_signal_fence(std::memory_order_seq_cst);
        } else {
            slot_->state.store(kInFlight, std::memory_order_seq_cst);
        }
        if (__builtin_expect(gate_words.closed.load(std::memory_order_seq_cst) != 0, 0)) enter_closed_gate(slot_);
    }

    Slot* slot_;
};

// Inside a call that waits or only answers. A thread that is in a gated call already is counted there.
class PassiveEntry {
  public:
    __attribute__((always_inline)) PassiveEntry() : slot_(thread_slot) {
        if (__builtin_expect(slot_ == nullptr, 0)) slot_ = attach_slot();
        if (slot_ != nullptr && slot_->passive_depth++ == 0 && slot_->depth == 0) enter();
    }
    __attribute__((always_inline)) ~PassiveEntry() {
        if (slot_ != nullptr && --slot_->passive_depth == 0) slot_->passive.store(0, std::memory_order_release);
    }
    PassiveEntry(const PassiveEntry&) = delete;
    PassiveEntry& operator=(const PassiveEntry&) = delete;

  private:
    __attribute__((always_inline)) void enter() {
        // pairs with shut_for_freeze(), as GateEntry::enter with close_gate()
        if (__builtin_expect(gate_words.fenced.load(std::memory_order_relaxed) != 0, 1)) {
            slot_->passive.store(1, std::memory_order_relaxed);
            std::atomic_signal_fence(std::memory_order_seq_cst);
        } else {
            slot_->passive.store(1, std::memory_order_seq_cst);
        }
        if (__builtin_expect(gate_words.frozen.load(std::memory_order_seq_cst) != 0, 0)) wait_while_frozen(slot_);
    }

    Slot* slot_;
};

// ---- the agent's side -------------------------------------------------------------------------------------------
void prepare_gate();  // once, before the first close: asks the kernel for process-wide fences
void leave_gate_open();  // nobody will ever close it: calls need no fence of their own
void close_gate();
void open_gate();
void pulse_gate();  // every parked thread makes one call, the gate stays closed for the next
bool gate_is_closed();
bool shut_for_freeze(uint32_t deadline_ms);  // false: a call did not leave the driver in time; nothing is shut
void open_after_thaw();
uint32_t calls_in_flight();  // threads inside the driver, or about to be
uint32_t threads_parked();
uint64_t gated_calls();

// A capture can neither begin while a close is wanted nor be interrupted: see quiesce.cpp.
void hold_captures(bool held);
void wait_to_capture();  // by a thread in flight: steps out, waits while captures are held, steps in again

void reset_gate_after_fork();  // in the child: every other thread is gone

}  // namespace gcr

#endif  // GCR_CORE_GATE_H
