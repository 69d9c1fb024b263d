// SPDX-License-Identifier: Apache-2.0
//
// Releases: what the program freed while others held it, and how long its free waits for them to let go.
//
// Prompt    a free tells the daemon and waits for its answer: the memory is free then, for the next allocation.
// Slow      after an answer that did not come in time no free waits, until one comes in time again. The others hold their
//           descriptors a little longer; an id is never reused, so nothing is taken for something else.
// Unsaid    what could not be sent is said when it can be, to the next daemon if need be: it may hold descriptors, too.
//           So is what a daemon refused that has too many requests at once.
#ifndef GCR_CORE_RELEASES_H
#define GCR_CORE_RELEASES_H

#include <stdint.h>

#include <atomic>

#include "core/array.h"
#include "core/lock.h"

namespace gcr {

class Releases {
  public:
    void tell(uint64_t id);  // by the thread that frees, in flight, holding no lock
    void say_unsaid();  // by the agent's thread, now and then
    void heard(uint64_t request);  // an answer to a release, in whatever order
    void refused(uint64_t request);  // the daemon did nothing
    void lose();  // the connection ended: what was not answered is unsaid
    Lock& lock() { return lock_; }  // after the session's batch lock
    void reset_after_fork();

  private:
    void tell_promptly(uint64_t id);
    void tell_slowly(uint64_t id);
    void await(uint64_t request, uint64_t id);
    enum class Then { kForget, kSayAgain };
    void settle(uint64_t request, Then then);  // it was answered, or never sent
    void unsay(uint64_t request);
    uint32_t take(uint64_t* ids, uint32_t limit);

    std::atomic<bool> slow_{false};  // relaxed: a hint
    std::atomic<uint64_t> asked_{0};  // the request of a release that no thread waits for; 0: none
    std::atomic<uint64_t> asked_at_{0};  // ms
    uint64_t say_from_ = 0;  // ms; the agent's thread alone
    struct Told {
        uint64_t request;
        uint64_t id;
    };
    Lock lock_;
    Array<uint64_t> unsaid_;  // under the lock
    Array<Told> unanswered_;  // the same
};

}  // namespace gcr

#endif  // GCR_CORE_RELEASES_H
