// SPDX-License-Identifier: Apache-2.0
//
// Occupied: on which devices gcr itself has memory for a moment and gives it back when asked. The daemon's page (wire.h),
// mapped: what it says is there without a frame, for a process that was stopped or busy as well.
//
// Who      adopt, lose: the agent's thread. find: any thread whose allocation has failed; nobody else looks.
// Never    a fault: the page is sealed against shrinking, and unmapped under the lock that readers hold.
#ifndef GCR_CORE_OCCUPIED_H
#define GCR_CORE_OCCUPIED_H

#include <stdint.h>

#include "core/lock.h"
#include "gcr/wire.h"

namespace gcr {

class Occupied {
  public:
    // Instead of the page before; the descriptor stays the caller's. -1, or no such page: nothing is occupied.
    void adopt(int page);
    // The daemon is gone. What is occupied now is free when its workers have ended too, `patience_ms` later at most.
    void lose(uint32_t patience_ms);
    bool find(const uint8_t uuid[16], wire::OccupiedRecord* found);
    uint32_t orphaned_ms();  // what is left of that patience; 0: the daemon is there, or all is free
    void reset_after_fork();  // in the child, to which nothing was said

  private:
    void drop();

    Lock lock_;
    const wire::OccupiedRecord* rows_ = nullptr;
    uint64_t free_at_ms_ = 0;  // of now_ms(), once the daemon is gone
};

}  // namespace gcr

#endif  // GCR_CORE_OCCUPIED_H
