// SPDX-License-Identifier: Apache-2.0
//
// Occupied: on which devices gcr itself has memory for a moment and gives it back when asked. The daemon's page (wire.h),
// mapped: what it says is there without a frame, for a process that was stopped or busy as well.
//
// Callers  The agent's thread calls adopt, lose and forget. A thread calls find only after its allocation has failed.
// Never    a fault: the page is sealed against shrinking, and unmapped under the lock that readers hold.
#ifndef GCR_CORE_OCCUPIED_H
#define GCR_CORE_OCCUPIED_H

#include <stdint.h>

#include "core/lock.h"
#include "gcr/wire.h"

namespace gcr {

class Occupied {
  public:
    // Instead of the page before; the descriptor stays the caller's. -1, or no such page: it says nothing.
    void adopt(int page);
    // The daemon is gone. What is occupied now is free when its workers have ended too, `patience_ms` later at most; the
    // next daemon says nothing of it.
    void lose(uint32_t patience_ms);
    bool find(const uint8_t uuid[16], wire::OccupiedRecord* found);  // by the daemon that is there
    uint32_t orphaned_ms(const uint8_t uuid[16]);  // what is left of that patience; 0: no daemon that is gone left any
    void forget();  // says nothing any more, neither of this daemon nor of former ones
    void reset_after_fork();  // in the child, to which nothing was said

  private:
    void drop();

    Lock lock_;
    const wire::OccupiedRecord* rows_ = nullptr;
    wire::OccupiedRecord left_[wire::kOccupiedDevices] = {};  // by daemons that are gone, until free_at_ms_
    int left_count_ = 0;
    uint64_t free_at_ms_ = 0;  // of now_ms()
};

}  // namespace gcr

#endif  // GCR_CORE_OCCUPIED_H
