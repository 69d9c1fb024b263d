// SPDX-License-Identifier: Apache-2.0
//
// Staged: the sealed table and the arena segments a suspended process keeps, so that no death elsewhere loses its bytes.
// The agent's thread alone; close_in_child() in a fork's child.
#ifndef GCR_CORE_STAGED_H
#define GCR_CORE_STAGED_H

#include "core/array.h"
#include "core/sys.h"

namespace gcr {

class Staged {
  public:
    static constexpr uint32_t kMost = 1 << 16;  // descriptors of a set; as MOST_STAGED in core/gcr/memory/escrow.py

    // Takes the descriptors. False: not the next ones of this set, or no host memory; they are closed, the rest stays.
    bool add(uint64_t transaction, uint32_t offset, uint32_t total, const int* descriptors, uint32_t count);
    bool complete() const { return total_ > 0 && files_.size() == total_; }
    uint64_t transaction() const { return transaction_; }
    uint32_t total() const { return total_; }
    // Descriptors from `offset` on, at most `limit`; ours still. Fewer than asked when the program closed one.
    uint32_t copy(uint32_t offset, uint32_t limit, int* descriptors) const;
    void drop();

  private:
    uint64_t transaction_ = 0;
    uint32_t total_ = 0;
    Array<OwnedFd> files_;
};

}  // namespace gcr

#endif  // GCR_CORE_STAGED_H
