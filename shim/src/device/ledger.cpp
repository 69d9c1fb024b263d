// SPDX-License-Identifier: Apache-2.0
#include "device/ledger.h"

#include "device/state.h"

namespace gcr {
namespace device {

void Ledger::add(uint64_t key, const Entry& entry) {
    Node* node = make<Node>();
    if (node == nullptr) return;
    node->key = key;
    node->entry = entry;
    Guard guard(lock_);
    if (!tree_.insert(node)) {
        free(node);
        return;
    }
    total_ += entry.bytes;
    if (entry.reason != kCovered) add_uncovered(entry.reason, entry.bytes);
}

void Ledger::erase(Node* node) {
    tree_.erase(node);
    total_ -= node->entry.bytes;
    if (node->entry.reason != kCovered) drop_uncovered(node->entry.reason, node->entry.bytes);
    free(node);
}

bool Ledger::take(uint64_t key, Entry* taken) {
    Guard guard(lock_);
    Node* node = tree_.find(key);
    if (node == nullptr) return false;
    *taken = node->entry;
    erase(node);
    return true;
}

void Ledger::forget_owned_by(const void* owner) {
    Guard guard(lock_);
    for (Node* node = tree_.first(); node != nullptr;) {
        Node* next = tree_.after(node);
        if (node->entry.owner == owner) erase(node);
        node = next;
    }
}

uint64_t Ledger::bytes_of(uint64_t key) {
    Guard guard(lock_);
    Node* node = tree_.find(key);
    return node == nullptr ? 0 : node->entry.bytes;
}

void Ledger::forget_all_after_fork() {
    lock_.reset_after_fork();
    tree_.forget_all();
    total_.store(0);
}

}  // namespace device
}  // namespace gcr
