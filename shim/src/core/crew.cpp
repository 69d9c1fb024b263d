// SPDX-License-Identifier: Apache-2.0
#include "core/crew.h"

#include "core/threads.h"

namespace gcr {

void* Crew::body(void* self) {
    static_cast<Crew*>(self)->work();
    return nullptr;
}

void Crew::work() {
    while (true) {
        while (state_.load(std::memory_order_acquire) != kWorking) futex_wait(&state_, kResting, kForever);
        job_();
        state_.store(kResting, std::memory_order_release);  // pairs with busy(): what the job wrote is visible
        futex_wake(&state_, 2);
    }
}

bool Crew::begin(Job job) {
    if (state_.load(std::memory_order_acquire) == kNone) {
        state_.store(kResting, std::memory_order_release);
        if (!start_thread(body, this)) {
            state_.store(kNone, std::memory_order_release);
            return false;
        }
    }
    if (busy()) return false;
    job_ = job;
    state_.store(kWorking, std::memory_order_release);  // pairs with work(): it reads job_
    futex_wake(&state_, 2);
    return true;
}

void Crew::wait(uint32_t timeout_ms) {
    Deadline deadline(timeout_ms);
    while (busy() && !deadline.passed()) futex_wait(&state_, kWorking, deadline.left_ms());
}

}  // namespace gcr
