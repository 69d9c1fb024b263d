// SPDX-License-Identifier: Apache-2.0
//
// Ledger: bytes under a key, for as long as the thing lives that the key names. Keys are whatever names it: a device
// pointer, an array, a pool, a host address; all are addresses of one process, none is two. A reason makes it count as
// uncovered meanwhile. No driver call.
//
// Lock   its own; after State::lock where both are held.
#ifndef GCR_DEVICE_LEDGER_H
#define GCR_DEVICE_LEDGER_H

#include <stdint.h>

#include "core/coverage.h"
#include "core/lock.h"
#include "core/tree.h"

namespace gcr {
namespace device {

struct Entry {
    uint64_t bytes;
    Reason reason;      // 0: none
    const void* owner;  // whose end is its end: CUDA: a context; HIP, ACL: null
};

class Ledger {
  public:
    void add(uint64_t key, const Entry& entry);  // a key that is there already stays as it is
    bool take(uint64_t key, Entry* taken);
    void forget_owned_by(const void* owner);
    uint64_t bytes_of(uint64_t key);
    uint64_t total_bytes() const { return total_.load(std::memory_order_relaxed); }

    // Forgets before the driver frees, remembers again when it would not. free_call: the driver's, 0 is success.
    template <typename Free>
    auto free_with(uint64_t key, Free free_call) {
        Entry entry{};
        bool known = take(key, &entry);
        auto result = free_call();
        if (result != 0 && known) add(key, entry);
        return result;
    }

    Lock& lock() { return lock_; }  // for fork alone
    void forget_all_after_fork();

  private:
    struct Node : TreeNode<Node> {
        Entry entry;
    };
    void erase(Node* node);

    Lock lock_;
    Tree<Node> tree_;
    std::atomic<uint64_t> total_{0};
};

}  // namespace device
}  // namespace gcr

#endif  // GCR_DEVICE_LEDGER_H
