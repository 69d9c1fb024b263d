// SPDX-License-Identifier: Apache-2.0
//
// The gate: calls that enqueue work or change allocations mark themselves in flight here and wait while it is closed.
//
// Callers  any thread, through GateEntry; the agent alone closes, pulses and opens.
// Cost     open gate, after a thread's first call: some ten instructions and the thread's own cache line; no lock, no
//          allocation, no system call. A program that waits for nothing makes a million calls a second, most of them
//          questions that the driver answers in a few ns.
// Ordering a thread counts itself in, then looks whether it may go on; the agent changes what it will find, then reads
//          the counts. One of the two must see the other: by the process-wide fence of the agent, or, where the kernel
//          has none, by a look closer at every call.
// Never    waits counted in; waits in a call nested in a gated one.
// Signals  a handler that runs on a waiting thread is in no call; one that runs on a thread inside the driver is part of
//          that call. So is one that runs in the few instructions between a thread's count and its look, though that
//          call may yet have to wait: a handler that calls the driver just then is not held back.
// Parked   a thread that waits says which call it waits with; the agent may let one such thread through by its number.
// Watched  the launches of a process that has coupled kernels (core/coupled.h) pass the slow way, open gate or not, and are
//          counted there. Its other calls, and the launch path of all other processes, cost what they did.
// Frozen   while the control state is with the driver's checkpoint no call at all may be inside the driver: r580 lets
//          some through its own lock (cuStreamSynchronize) and the program dies of it. Calls that never enqueue carry
//          a mark of their own, PassiveEntry, and wait only for that.
#ifndef GCR_CORE_GATE_H
#define GCR_CORE_GATE_H

#include <stdint.h>

#include <atomic>

#include "core/call.h"
#include "core/slots.h"

namespace gcr {

// Cold: kept out of the wrappers' own cache lines. Count the call in, wait if it must, and return the calling thread's
// slot; the first call of a thread takes one. Where memory is exhausted it gets one that no thread looks at.
__attribute__((cold, noinline)) Slot* enter_gate_slowly(Call call = {});
__attribute__((cold, noinline)) Slot* enter_passively_slowly();
__attribute__((cold, noinline)) Slot* enter_unless_frozen();  // null: frozen
__attribute__((cold, noinline)) Slot* enter_unless_closed();  // null: the gate is closed

// The calling thread, which has a slot, is one that calls of other processes wait for: kParkedHelper.
void become_helper();

// The calling thread is ours: whatever a runtime calls of its own exports on it goes straight on, gate closed or not.
void stand_aside();

struct Slowly {};  // it did not pass

// In flight for as long as it lives. Made before the driver is called; core/inside.h passes and leaves instead.
class GateEntry {
  public:
    __attribute__((always_inline)) GateEntry() : slot_(pass()) {
        if (__builtin_expect(slot_ == nullptr, 0)) slot_ = enter_gate_slowly();
    }
    explicit GateEntry(Slowly, Call call = {}) : slot_(enter_gate_slowly(call)) {}
    // describe: makes the Call; asked only where the entry is slow.
    template <class Describe>
    __attribute__((always_inline)) explicit GateEntry(Describe describe, bool launches) : slot_(pass(launches)) {
        if (__builtin_expect(slot_ == nullptr, 0)) slot_ = enter_gate_slowly(describe());
    }
    __attribute__((always_inline)) ~GateEntry() { leave(slot_); }
    GateEntry(const GateEntry&) = delete;
    GateEntry& operator=(const GateEntry&) = delete;

    // Null: not passed, make an entry.
    __attribute__((always_inline)) static Slot* pass(bool launches = false) {
        Slot* slot = thread_slot;
        if (__builtin_expect(slot == nullptr || !count_in(slot, slot->depth, launches ? kGo : kWatch), 0))
            return nullptr;
        slot->calls.store(slot->calls.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
        return slot;
    }
    __attribute__((always_inline)) static void leave(Slot* slot) { count_out(slot->depth); }

  private:
    Slot* slot_;
};

// Inside a call that waits or only answers.
class PassiveEntry {
  public:
    __attribute__((always_inline)) PassiveEntry() : slot_(pass()) {
        if (__builtin_expect(slot_ == nullptr, 0)) slot_ = enter_passively_slowly();
    }
    explicit PassiveEntry(Slowly, Call = {}) : slot_(enter_passively_slowly()) {}
    template <class Describe>
    __attribute__((always_inline)) explicit PassiveEntry(Describe, bool) : PassiveEntry() {}
    __attribute__((always_inline)) ~PassiveEntry() { leave(slot_); }
    PassiveEntry(const PassiveEntry&) = delete;
    PassiveEntry& operator=(const PassiveEntry&) = delete;

    // Null: not passed, make an entry.
    __attribute__((always_inline)) static Slot* pass(bool = false) {
        Slot* slot = thread_slot;
        return __builtin_expect(slot != nullptr && count_in(slot, slot->passive, kWatch), 1) ? slot : nullptr;
    }
    __attribute__((always_inline)) static void leave(Slot* slot) { count_out(slot->passive); }

  private:
    Slot* slot_;
};

// Inside a call that asks whether work of the program has ended, or waits for that. While frozen it need not be made: what
// was enqueued had ended before, and no thread enqueues more. A program that looks after its own work, as a
// communication library's watchdog does, is answered then, for as long as it is suspended.
class EndEntry {
  public:
    __attribute__((always_inline)) EndEntry() : slot_(PassiveEntry::pass()) {
        if (__builtin_expect(slot_ == nullptr, 0)) slot_ = enter_unless_frozen();
    }
    __attribute__((always_inline)) ~EndEntry() {
        if (slot_ != nullptr) PassiveEntry::leave(slot_);
    }
    EndEntry(const EndEntry&) = delete;
    EndEntry& operator=(const EndEntry&) = delete;
    bool has_ended() const { return slot_ == nullptr; }

  private:
    Slot* slot_;
};

// Inside a call that gives something up. While the gate is closed it need not be made: no work depends on it.
class DiscardEntry {
  public:
    __attribute__((always_inline)) DiscardEntry() : slot_(GateEntry::pass()) {
        if (__builtin_expect(slot_ == nullptr, 0)) slot_ = enter_unless_closed();
    }
    __attribute__((always_inline)) ~DiscardEntry() {
        if (slot_ != nullptr) GateEntry::leave(slot_);
    }
    DiscardEntry(const DiscardEntry&) = delete;
    DiscardEntry& operator=(const DiscardEntry&) = delete;
    bool is_put_off() const { return slot_ == nullptr; }

  private:
    Slot* slot_;
};

// ---- the agent's side -------------------------------------------------------------------------------------------
void prepare_gate();  // once, before the first close: asks the kernel for process-wide fences
void leave_gate_open();  // it will never be closed: calls need no fence of their own
void use_process_fences(bool wanted);  // false: calls fence for themselves
void close_gate();
void open_gate();
void pulse_gate();  // every parked thread makes one call, the gate stays closed for the next
bool gate_is_closed();
void watch_launches();  // by any thread: from here on every launch passes the slow way

// A thread that waits at the gate. `calls`: gated ones, this one included.
struct Waiting {
    uint32_t number;
    bool helper;
    uint64_t calls;
    uint64_t signature;
    uint64_t stream;
};
uint32_t list_parked(Waiting* found, uint32_t limit);
bool find_parked(uint32_t number, Waiting* found);
bool admit_one(uint32_t number);  // false: it does not wait
uint32_t captures_waiting();  // threads that wait to begin one

bool shut_for_freeze(uint32_t deadline_ms);  // false: a call did not leave the driver in time; nothing is shut
void open_after_thaw();
uint32_t calls_in_flight();  // threads inside the driver, or about to be
uint32_t threads_parked();
uint64_t gated_calls();

// A capture can neither begin while a close is wanted nor be interrupted: see quiesce.cpp.
void hold_captures(bool held);
// By a thread in flight, in a call that has done nothing yet: it waits as if it came only now.
void wait_as_if_new();
void wait_to_capture();  // by a thread in flight: steps out, waits while captures are held, steps in again

// A synchronisation or a query breaks a capture, and a helper thread may come to its call only after the gate has opened. No
// capture begins meanwhile, for a second at most: the call may wait for work that waits for the program.
void begin_examination();  // by the agent's thread, before the helper thread hears of it
void end_examination();  // by the helper thread

void reset_gate_after_fork();  // in the child: every other thread is gone

}  // namespace gcr

#endif  // GCR_CORE_GATE_H
