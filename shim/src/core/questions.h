// SPDX-License-Identifier: Apache-2.0
//
// Questions: what other threads ask the daemon (kReleased, kLetGo, kDescriptor) and wait for. The agent's thread reads the
// socket and delivers; it does so also while it waits for those very threads to leave the driver (quiesce.cpp).
// A connection that ends answers every question with "the daemon is gone".
#ifndef GCR_CORE_QUESTIONS_H
#define GCR_CORE_QUESTIONS_H

#include <stdint.h>

#include "core/lock.h"

namespace gcr {

struct Question {
    uint64_t request;
    std::atomic<uint32_t> answered{0};
    Question* next;
    int descriptor = -1;  // that came with the answer; the thread that asked owns it
};

class Questions {
  public:
    void open(Question* question);  // gives it its request id
    uint64_t number();  // a request id whose answer no thread waits for
    bool wait(Question* question, uint32_t deadline_ms);  // false: no answer in time; the question is closed either way
    bool deliver(uint64_t request, int descriptor = -1);  // true: a thread owns the descriptor now
    void abandon();  // the connection ended
    void reset_after_fork();

  private:
    void answer(Question* question);

    Lock lock_;
    Question* first_ = nullptr;
    uint64_t last_request_ = 1ull << 63;  // the daemon counts from 1: no id is used by both
};

}  // namespace gcr

#endif  // GCR_CORE_QUESTIONS_H
