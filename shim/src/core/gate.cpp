// SPDX-License-Identifier: Apache-2.0
#include "core/gate.h"

#include <string.h>
#include <sys/prctl.h>

#include "core/coupled.h"
#include "core/sys.h"

namespace gcr {
namespace {

std::atomic<uint32_t> captures_held{0};  // futex word of threads that wait to begin a capture
std::atomic<uint32_t> begin_waiting{0};  // of these, how many wait
std::atomic<uint32_t> examinations{0};   // futex word of the same threads
constexpr uint32_t kExaminationMs = 1000;
std::atomic<bool> watching{false};
std::atomic<uint32_t> closed{0};
std::atomic<uint32_t> frozen{0};  // futex word
std::atomic<bool> fenced{false};  // the agent fences for all
Slot nobodys;  // of threads there is no memory for

bool captures_are_held() {
    return captures_held.load(std::memory_order_seq_cst) != 0;
}

bool devices_are_examined() {
    return examinations.load(std::memory_order_seq_cst) != 0;
}

// False: an examination took too long to wait for.
bool wait_for_capture() {
    while (captures_are_held()) futex_wait(&captures_held, 1, kForever);
    Deadline patience(kExaminationMs);
    while (!captures_are_held() && !patience.passed()) {
        uint32_t under_way = examinations.load(std::memory_order_seq_cst);
        if (under_way == 0) return true;
        futex_wait(&examinations, under_way, patience.left_ms());
    }
    return captures_are_held();
}

uint32_t look_wanted() {
    bool shut = closed.load(std::memory_order_seq_cst) != 0 || frozen.load(std::memory_order_seq_cst) != 0;
    if (shut || !fenced.load(std::memory_order_seq_cst)) return kLookCloser;
    return watching.load(std::memory_order_seq_cst) ? kWatch : kGo;
}

// Every thread's next call finds it. A slot that is published meanwhile is fresh: its owner asks.
void tell_slots() {
    each_slot([](Slot* slot) { slot->look.store(look_wanted(), std::memory_order_seq_cst); });
    process_fence();  // stands in for a fence in count_in(); where there is none, calls fence for themselves
}

// By the owner. What the agent says meanwhile is newer.
void ask_for_look(Slot* slot) {
    uint32_t fresh = kFresh;
    if (slot->look.load(std::memory_order_relaxed) == kFresh) slot->look.compare_exchange_strong(fresh, look_wanted());
}

// Null only where memory is exhausted: then the call is ungated.
Slot* told_slot() {
    Slot* slot = own_slot();
    if (slot != nullptr) ask_for_look(slot);
    return slot;
}

bool admit(Slot* slot) {
    uint32_t expected = kParked;
    if (!slot->parking.compare_exchange_strong(expected, kAdmitted)) return false;
    futex_wake(&slot->parking, 1);
    return true;
}

void admit_parked() {
    each_slot([](Slot* slot) { admit(slot); });
}

// Its owner may be on its way out; then this is about the call that it was parked with.
Waiting waiting(const Slot* slot) {
    return {slot->number, slot->helper.load(std::memory_order_relaxed) != 0,
            slot->calls.load(std::memory_order_relaxed), slot->signature.load(std::memory_order_relaxed),
            slot->stream.load(std::memory_order_relaxed)};
}

bool is_inside(const Slot* slot, const std::atomic<uint32_t>& calls) {
    return calls.load(std::memory_order_seq_cst) != 0 && slot->aside.load(std::memory_order_seq_cst) == 0;
}

uint32_t passive_calls() {
    return count_slots([](const Slot* slot) { return is_inside(slot, slot->passive); });
}

// A thread that waits is outside the driver, and its slot says so: a signal handler that runs on it meanwhile and calls
// the driver is gated like any other call, and one that jumps out of the wait leaves no call behind.
void step_out(std::atomic<uint32_t>& count) {
    count.store(0, std::memory_order_seq_cst);
}

// From here on what a handler calls is part of this call.
void step_in(std::atomic<uint32_t>& count) {
    count.store(1, std::memory_order_seq_cst);
}

// Libraries name their own threads, and a kernel of theirs may wait for a call of one.
bool is_helper() {
    KeepErrno keep;
    char name[16] = {};
    return prctl(PR_GET_NAME, name) == 0 && strncmp(name, "NCCL", 4) == 0;
}

void say_what_waits(Slot* slot, const Call& call) {
    slot->signature.store(coupled::signature_of(call), std::memory_order_relaxed);
    slot->stream.store(call.stream, std::memory_order_relaxed);
    if (slot->helper.load(std::memory_order_relaxed) != kOurs)
        slot->helper.store(is_helper() ? kALibrarys : kNone, std::memory_order_relaxed);
}

// Either this thread sees the gate open after it wrote kParked, or the thread that opens it sees kParked and wakes it:
// seq_cst. A handler's call on this thread may take an admission along.
void wait_at_gate(Slot* slot) {
    do {
        step_out(slot->depth);
        slot->parking.store(kParked, std::memory_order_seq_cst);
        while (gate_is_closed() && slot->parking.load(std::memory_order_seq_cst) == kParked)
            futex_wait(&slot->parking, kParked, kForever);
        step_in(slot->depth);
    } while (slot->parking.exchange(kNotParked, std::memory_order_seq_cst) != kAdmitted && gate_is_closed());
}

// Counts the call in. True: frozen, and the thread is in no other call.
bool meets_the_frost(Slot* slot) {
    uint32_t passive = slot->passive.load(std::memory_order_relaxed);
    slot->passive.store(passive + 1, std::memory_order_seq_cst);  // before the look at what is frozen
    // a thread that is in a gated call already is counted there
    bool outermost = passive == 0 && slot->depth.load(std::memory_order_relaxed) == 0;
    return outermost && frozen.load(std::memory_order_seq_cst) != 0;
}

void wait_for_thaw(Slot* slot) {
    do {
        step_out(slot->passive);
        while (frozen.load(std::memory_order_seq_cst) != 0) futex_wait(&frozen, 1, kForever);
        step_in(slot->passive);
    } while (frozen.load(std::memory_order_seq_cst) != 0);
}

}  // namespace

Slot* enter_gate_slowly(Call call) {
    Slot* slot = told_slot();
    if (slot == nullptr) return &nobodys;
    uint32_t depth = slot->depth.load(std::memory_order_relaxed);
    slot->calls.store(slot->calls.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    slot->depth.store(depth + 1, std::memory_order_seq_cst);  // before the look at the gate
    if (depth != 0) return slot;
    if (gate_is_closed()) {
        say_what_waits(slot, call);
        wait_at_gate(slot);
    }
    pay();
    if (watching.load(std::memory_order_relaxed)) coupled::note(call, slot->number);
    return slot;
}

Slot* enter_passively_slowly() {
    Slot* slot = told_slot();
    if (slot == nullptr) return &nobodys;
    if (meets_the_frost(slot)) wait_for_thaw(slot);
    pay();
    return slot;
}

Slot* enter_unless_frozen() {
    Slot* slot = told_slot();
    if (slot == nullptr) return &nobodys;
    if (meets_the_frost(slot)) {
        step_out(slot->passive);
        return nullptr;
    }
    pay();
    return slot;
}

Slot* enter_unless_closed() {
    Slot* slot = told_slot();
    if (slot == nullptr) return &nobodys;
    uint32_t depth = slot->depth.load(std::memory_order_relaxed);
    slot->depth.store(depth + 1, std::memory_order_seq_cst);  // before the look at the gate
    if (depth == 0 && gate_is_closed()) {
        step_out(slot->depth);
        return nullptr;
    }
    slot->calls.store(slot->calls.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    pay();
    return slot;
}

void become_helper() {
    if (thread_slot != nullptr) thread_slot->helper.store(kOurs, std::memory_order_relaxed);
}

void stand_aside() {
    Slot* slot = told_slot();
    if (slot == nullptr || slot->depth.load(std::memory_order_relaxed) != 0) return;
    slot->aside.store(1, std::memory_order_seq_cst);
    slot->depth.store(1, std::memory_order_seq_cst);
}

void use_process_fences(bool wanted) {
    fenced.store(wanted, std::memory_order_seq_cst);
    tell_slots();
}

void prepare_gate() {
#if defined(__SANITIZE_THREAD__)
    use_process_fences(false);  // the sanitizer does not know the kernel's fence
#else
    use_process_fences(register_process_fence());
#endif
}

void leave_gate_open() {
    use_process_fences(true);
}

void close_gate() {
    closed.store(1, std::memory_order_seq_cst);
    tell_slots();
}

void open_gate() {
    closed.store(0, std::memory_order_seq_cst);
    tell_slots();
    each_slot([](Slot* slot) {  // a mark that stayed, of a thread that jumped out of its wait, goes as well
        if (slot->parking.exchange(kNotParked, std::memory_order_seq_cst) == kParked) futex_wake(&slot->parking, 1);
    });
}

void pulse_gate() {
    admit_parked();
}

void watch_launches() {
    if (!watching.exchange(true, std::memory_order_seq_cst)) tell_slots();
}

uint32_t list_parked(Waiting* found, uint32_t limit) {
    uint32_t count = 0;
    each_slot([&](Slot* slot) {
        if (count == limit || slot->parking.load(std::memory_order_seq_cst) != kParked) return;
        found[count++] = waiting(slot);
    });
    return count;
}

bool find_parked(uint32_t number, Waiting* found) {
    bool parked = false;
    each_slot([&](Slot* slot) {
        if (slot->number != number || slot->parking.load(std::memory_order_seq_cst) != kParked) return;
        *found = waiting(slot);
        parked = true;
    });
    return parked;
}

bool admit_one(uint32_t number) {
    bool admitted = false;
    each_slot([&](Slot* slot) {
        if (slot->number == number) admitted = admit(slot);
    });
    return admitted;
}

uint32_t captures_waiting() {
    return begin_waiting.load(std::memory_order_relaxed);
}

bool gate_is_closed() {
    return closed.load(std::memory_order_seq_cst) != 0;
}

bool shut_for_freeze(uint32_t deadline_ms) {
    frozen.store(1, std::memory_order_seq_cst);
    tell_slots();
    Deadline deadline(deadline_ms);
    std::atomic<uint32_t> never{0};
    while (passive_calls() > 0 && !deadline.passed()) futex_wait(&never, 0, 1);
    if (passive_calls() == 0) return true;
    open_after_thaw();
    return false;
}

void open_after_thaw() {
    frozen.store(0, std::memory_order_seq_cst);
    tell_slots();
    futex_wake(&frozen, 0x7fffffff);
}

uint32_t calls_in_flight() {
    return count_slots([](const Slot* slot) {
        // in this order: an admitted thread counts itself in before it gives that up
        return slot->parking.load(std::memory_order_seq_cst) == kAdmitted || is_inside(slot, slot->depth);
    });
}

uint32_t threads_parked() {
    return count_slots([](const Slot* slot) { return slot->parking.load(std::memory_order_seq_cst) == kParked; });
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

void begin_examination() {
    examinations.fetch_add(1, std::memory_order_seq_cst);
}

void end_examination() {
    examinations.fetch_sub(1, std::memory_order_seq_cst);
    futex_wake(&examinations, 0x7fffffff);
}

void wait_to_capture() {
    Slot* slot = thread_slot;
    bool patient = true;
    while (captures_are_held() || (patient && devices_are_examined())) {
        if (slot != nullptr) step_out(slot->depth);
        begin_waiting.fetch_add(1, std::memory_order_relaxed);
        patient = wait_for_capture();
        begin_waiting.fetch_sub(1, std::memory_order_relaxed);
        if (slot == nullptr) return;
        step_in(slot->depth);
        if (gate_is_closed()) wait_at_gate(slot);
    }
}

void wait_as_if_new() {
    Slot* slot = thread_slot;
    if (slot != nullptr && slot->depth.load(std::memory_order_relaxed) == 1 && gate_is_closed()) wait_at_gate(slot);
}

void reset_gate_after_fork() {
    closed.store(0, std::memory_order_seq_cst);
    frozen.store(0, std::memory_order_seq_cst);
    watching.store(false, std::memory_order_seq_cst);
    captures_held.store(0, std::memory_order_seq_cst);
    begin_waiting.store(0, std::memory_order_relaxed);
    examinations.store(0, std::memory_order_relaxed);
    forget_debt();
    each_slot([](Slot* slot) {
        slot->parking.store(kNotParked, std::memory_order_relaxed);  // it may be waiting: a handler forked
        if (slot == thread_slot) return;
        slot->aside.store(0, std::memory_order_relaxed);
        slot->depth.store(0, std::memory_order_relaxed);
        slot->passive.store(0, std::memory_order_relaxed);
        slot->taken.store(0, std::memory_order_relaxed);
    });
    use_process_fences(fenced.load() && register_process_fence());
}

}  // namespace gcr
