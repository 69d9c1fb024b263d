// SPDX-License-Identifier: Apache-2.0
//
// A small lock over a futex. Not recursive. Never held across a driver call unless its owner says so where it stands.
#ifndef GCR_CORE_LOCK_H
#define GCR_CORE_LOCK_H

#include "core/sys.h"

namespace gcr {

class Lock {
  public:
    void acquire() {
        uint32_t free = 0;
        // acquire: pairs with the release in release(), so the holder sees what the last one wrote
        if (state_.compare_exchange_strong(free, 1, std::memory_order_acquire)) return;
        while (state_.exchange(2, std::memory_order_acquire) != 0) futex_wait(&state_, 2, kForever);
    }
    void release() {
        if (state_.exchange(0, std::memory_order_release) == 2) futex_wake(&state_, 1);
    }
    void reset_after_fork() { state_.store(0, std::memory_order_relaxed); }

  private:
    std::atomic<uint32_t> state_{0};  // 0 free, 1 held, 2 held and waited for
};

class Guard {
  public:
    explicit Guard(Lock& lock) : lock_(lock) { lock_.acquire(); }
    ~Guard() { lock_.release(); }
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;

  private:
    Lock& lock_;
};

}  // namespace gcr

#endif  // GCR_CORE_LOCK_H
