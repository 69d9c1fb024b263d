// SPDX-License-Identifier: Apache-2.0
#include "core/gate.h"

#include <sys/mman.h>

#include <new>

#include "core/sys.h"
#include "core/threads.h"

namespace gcr {

__thread Slot* thread_slot = nullptr;
GateWords gate_words;

namespace {

constexpr size_t kSlotsPerChunk = 64;

std::atomic<Slot*> slots{nullptr};           // newest first; append-only for the life of the process
std::atomic<uint32_t> captures_held{0};      // futex word of threads that wait to begin a capture

Slot* take_free_slot() {
    for (Slot* slot = slots.load(std::memory_order_acquire); slot != nullptr; slot = slot->next) {
        uint32_t expected = 0;
        if (slot->taken.compare_exchange_strong(expected, 1)) return slot;
    }
    return nullptr;
}

void publish(Slot* first, Slot* last) {
    Slot* head = slots.load(std::memory_order_relaxed);
    do {
        last->next = head;
    } while (!slots.compare_exchange_weak(head, first, std::memory_order_seq_cst));
}

// mmap, not malloc: a thread may make its first call inside an allocator that calls us.
Slot* map_slots() {
    KeepErrno keep;
    void* memory =
        mmap(nullptr, kSlotsPerChunk * sizeof(Slot), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return nullptr;
    Slot* chunk = static_cast<Slot*>(memory);
    for (size_t i = 0; i < kSlotsPerChunk; i++) {
        new (&chunk[i]) Slot;
        if (i > 0) chunk[i - 1].next = &chunk[i];
    }
    chunk[0].taken.store(1, std::memory_order_relaxed);
    publish(chunk, &chunk[kSlotsPerChunk - 1]);
    return chunk;
}

void leave_slot(void* value) {
    Slot* slot = static_cast<Slot*>(value);
    slot->depth = slot->passive_depth = 0;
    slot->state.store(kIdle, std::memory_order_release);
    slot->passive.store(0, std::memory_order_release);
    thread_slot = nullptr;
    slot->taken.store(0, std::memory_order_release);  // last: from here on another thread may own it
}

template <typename Visit>
void each_slot(Visit visit) {
    for (Slot* slot = slots.load(std::memory_order_seq_cst); slot != nullptr; slot = slot->next) visit(slot);
}

void admit_parked() {
    each_slot([](Slot* slot) {
        uint32_t expected = kParked;
        if (slot->state.compare_exchange_strong(expected, kAdmitted)) futex_wake(&slot->state, 1);
    });
}

uint32_t count_slots(bool (*matches)(uint32_t)) {
    uint32_t count = 0;
    each_slot([&](Slot* slot) { count += matches(slot->state.load(std::memory_order_seq_cst)) ? 1 : 0; });
    return count;
}

uint32_t passive_calls() {
    uint32_t count = 0;
    each_slot([&](Slot* slot) { count += slot->passive.load(std::memory_order_seq_cst); });
    return count;
}

}  // namespace

Slot* attach_slot() {
    Slot* slot = take_free_slot();
    if (slot == nullptr) slot = map_slots();
    if (slot == nullptr) return nullptr;
    slot->depth = slot->passive_depth = 0;
    thread_slot = slot;
    at_thread_exit(leave_slot, slot);
    return slot;
}

namespace {

// A thread that waits here is outside the driver, and its slot says so: a signal handler that runs on it meanwhile and
// calls the driver is gated like any other call, and one that jumps out of the wait leaves no call behind.
void step_out(uint32_t* depth) {
    *depth = 0;
    std::atomic_signal_fence(std::memory_order_seq_cst);
}

// From here on what a handler calls is part of this call; so the mark must be set before.
void step_in(uint32_t* depth) {
    std::atomic_signal_fence(std::memory_order_seq_cst);
    *depth = 1;
    std::atomic_signal_fence(std::memory_order_seq_cst);
}

// False: a handler's call came in between and took the mark along, or the gate is closed.
bool may_go_on(Slot* slot) {
    uint32_t found = slot->state.load(std::memory_order_seq_cst);
    if (found == kAdmitted) slot->state.store(kInFlight, std::memory_order_seq_cst);
    return found == kAdmitted || (found == kInFlight && !gate_is_closed());
}

}  // namespace

// Either this thread sees the gate open after it wrote kParked, or whoever opens it sees kParked and admits: seq_cst.
void enter_closed_gate(Slot* slot) {
    do {
        step_out(&slot->depth);
        slot->state.store(kParked, std::memory_order_seq_cst);
        while (gate_is_closed() && slot->state.load(std::memory_order_seq_cst) == kParked)
            futex_wait(&slot->state, kParked, kForever);
        if (slot->state.load(std::memory_order_seq_cst) != kAdmitted)
            slot->state.store(kInFlight, std::memory_order_seq_cst);
        step_in(&slot->depth);
    } while (!may_go_on(slot));
}

void wait_while_frozen(Slot* slot) {
    do {
        step_out(&slot->passive_depth);
        slot->passive.store(0, std::memory_order_seq_cst);
        while (gate_words.frozen.load(std::memory_order_seq_cst) != 0) futex_wait(&gate_words.frozen, 1, kForever);
        slot->passive.store(1, std::memory_order_seq_cst);
        step_in(&slot->passive_depth);
    } while (slot->passive.load(std::memory_order_seq_cst) == 0 ||
             gate_words.frozen.load(std::memory_order_seq_cst) != 0);
}

void stand_aside() {
    Slot* slot = thread_slot != nullptr ? thread_slot : attach_slot();
    if (slot != nullptr && slot->depth == 0) slot->depth = 1;  // inside a call for good, and never in flight
}

void prepare_gate() {
#if defined(__SANITIZE_THREAD__)
    gate_words.fenced.store(0, std::memory_order_seq_cst);  // the sanitizer does not know the kernel's fence
#else
    gate_words.fenced.store(register_process_fence() ? 1 : 0, std::memory_order_seq_cst);
#endif
}

void leave_gate_open() {
    gate_words.fenced.store(1, std::memory_order_relaxed);
}

void close_gate() {
    gate_words.closed.store(1, std::memory_order_seq_cst);
    if (gate_words.fenced.load(std::memory_order_relaxed))
        process_fence();  // stands in for the fence of GateEntry::enter
}

void open_gate() {
    gate_words.closed.store(0, std::memory_order_seq_cst);
    admit_parked();
}

void pulse_gate() {
    admit_parked();
}

bool gate_is_closed() {
    return gate_words.closed.load(std::memory_order_seq_cst) != 0;
}

bool shut_for_freeze(uint32_t deadline_ms) {
    gate_words.frozen.store(1, std::memory_order_seq_cst);
    if (gate_words.fenced.load(std::memory_order_relaxed)) process_fence();
    Deadline deadline(deadline_ms);
    std::atomic<uint32_t> nobody{0};
    while (passive_calls() > 0 && !deadline.passed()) futex_wait(&nobody, 0, 1);
    if (passive_calls() == 0) return true;
    open_after_thaw();
    return false;
}

void open_after_thaw() {
    gate_words.frozen.store(0, std::memory_order_seq_cst);
    futex_wake(&gate_words.frozen, 0x7fffffff);
}

uint32_t calls_in_flight() {
    return count_slots([](uint32_t state) { return state == kInFlight || state == kAdmitted; });
}

uint32_t threads_parked() {
    return count_slots([](uint32_t state) { return state == kParked; });
}

uint64_t gated_calls() {
    uint64_t calls = 0;
    each_slot([&](Slot* slot) { calls += slot->calls.load(std::memory_order_relaxed); });
    return calls;
}

void hold_captures(bool held) {
    captures_held.store(held ? 1 : 0, std::memory_order_seq_cst);
    if (!held) futex_wake(&captures_held, 0x7fffffff);
}

void wait_to_capture() {
    Slot* slot = thread_slot;
    while (captures_held.load(std::memory_order_seq_cst) != 0) {
        if (slot != nullptr) {
            step_out(&slot->depth);
            slot->state.store(kIdle, std::memory_order_seq_cst);
        }
        while (captures_held.load(std::memory_order_seq_cst) != 0) futex_wait(&captures_held, 1, kForever);
        if (slot == nullptr) return;
        slot->state.store(kInFlight, std::memory_order_seq_cst);
        step_in(&slot->depth);
        if (!may_go_on(slot)) enter_closed_gate(slot);
    }
}

void reset_gate_after_fork() {
    gate_words.closed.store(0, std::memory_order_seq_cst);
    gate_words.frozen.store(0, std::memory_order_seq_cst);
    captures_held.store(0, std::memory_order_seq_cst);
    each_slot([](Slot* slot) {
        if (slot == thread_slot) return;
        slot->depth = slot->passive_depth = 0;
        slot->state.store(kIdle, std::memory_order_relaxed);
        slot->passive.store(0, std::memory_order_relaxed);
        slot->taken.store(0, std::memory_order_relaxed);
    });
    if (gate_words.fenced.load(std::memory_order_relaxed) && !register_process_fence()) gate_words.fenced.store(0);
}

}  // namespace gcr
