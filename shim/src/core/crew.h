// SPDX-License-Identifier: Apache-2.0
//
// Crew: a thread that makes one driver call that may never return, so that the agent never does. Started when first
// needed; one job at a time; a job that never ends is remembered, and the thread is used again once it did.
// The agent's thread alone begins and asks. Nothing joins it, nothing waits for it under a lock.
#ifndef GCR_CORE_CREW_H
#define GCR_CORE_CREW_H

#include "core/sys.h"

namespace gcr {

class Crew {
  public:
    using Job = void (*)();
    bool busy() const { return state_.load(std::memory_order_acquire) == kWorking; }
    // False: still at its last job, or no thread could be had (`available` tells).
    bool begin(Job job);
    bool available() const { return state_.load(std::memory_order_acquire) != kNone; }
    void wait(uint32_t timeout_ms);  // until it is not busy
    void reset_after_fork() { state_.store(kNone, std::memory_order_relaxed); }

  private:
    enum State : uint32_t { kNone, kResting, kWorking };
    static void* body(void* self);
    void work();

    std::atomic<uint32_t> state_{kNone};
    Job job_ = nullptr;
};

}  // namespace gcr

#endif  // GCR_CORE_CREW_H
