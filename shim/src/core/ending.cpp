// SPDX-License-Identifier: Apache-2.0
#include "core/ending.h"

#include <stdlib.h>

#include "core/agent.h"
#include "core/gate.h"
#include "core/sys.h"

namespace gcr {
namespace {

constexpr uint32_t kLeaveDriverMs = 10000;  // a batch of exports takes milliseconds; a driver that hangs takes for ever

std::atomic<uint32_t> ending{0};
std::atomic<uint32_t> driving{0};  // futex word: how many Driving are alive
std::atomic<int> foreseen_by{0};  // a pid

// A child that was made without fork()'s handlers has a copy of all this, perhaps of a closed gate, and no agent.
bool is_led() {
    return agent_is_alive() && foreseen_by.load(std::memory_order_relaxed) == current_pid();
}

void begin_to_end() {
    KeepErrno keep;
    if (!is_led()) return;
    {
        GateEntry in_flight;
        ending.store(1, std::memory_order_seq_cst);
    }
    Deadline deadline(kLeaveDriverMs);
    while (uint32_t count = driving.load(std::memory_order_seq_cst)) {
        if (deadline.passed()) return;
        futex_wait(&driving, count, deadline.left_ms());
    }
}

}  // namespace

void foresee_ending() {
    foreseen_by.store(current_pid(), std::memory_order_relaxed);
    atexit(begin_to_end);
}

bool program_is_ending() {
    return ending.load(std::memory_order_seq_cst) != 0;
}

void note_ending() {
    ending.store(1, std::memory_order_seq_cst);
}

void reset_ending_after_fork() {
    ending.store(0, std::memory_order_relaxed);
    driving.store(0, std::memory_order_relaxed);
}

Driving::Driving() {
    driving.fetch_add(1, std::memory_order_seq_cst);
    allowed_ = !program_is_ending();
}

Driving::~Driving() {
    if (driving.fetch_sub(1, std::memory_order_seq_cst) == 1) futex_wake(&driving, 1);
}

}  // namespace gcr
