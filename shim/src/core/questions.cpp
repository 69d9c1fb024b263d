// SPDX-License-Identifier: Apache-2.0
#include "core/questions.h"

namespace gcr {

void Questions::open(Question* question) {
    Guard guard(lock_);
    question->request = ++last_request_;
    question->next = first_;
    first_ = question;
}

uint64_t Questions::number() {
    Guard guard(lock_);
    return ++last_request_;
}

bool Questions::wait(Question* question, uint32_t deadline_ms) {
    Deadline deadline(deadline_ms);
    while (question->answered.load(std::memory_order_acquire) == 0 && !deadline.passed())
        futex_wait(&question->answered, 0, deadline.left_ms());
    Guard guard(lock_);  // no thread delivers to a question that is about to leave the stack
    for (Question** place = &first_; *place != nullptr; place = &(*place)->next) {
        if (*place != question) continue;
        *place = question->next;
        break;
    }
    return question->answered.load(std::memory_order_acquire) != 0;
}

// Under the lock: the asking thread cannot leave wait() before we are done with its stack.
void Questions::answer(Question* question) {
    question->answered.store(1, std::memory_order_release);
    futex_wake(&question->answered, 1);
}

bool Questions::deliver(uint64_t request, int descriptor) {
    Guard guard(lock_);
    for (Question* question = first_; question != nullptr; question = question->next) {
        if (question->request != request) continue;
        question->descriptor = descriptor;
        answer(question);
        return descriptor >= 0;
    }
    return false;
}

void Questions::abandon() {
    Guard guard(lock_);
    for (Question* question = first_; question != nullptr; question = question->next) answer(question);
}

void Questions::reset_after_fork() {
    lock_.reset_after_fork();
    first_ = nullptr;
}

}  // namespace gcr
