// SPDX-License-Identifier: Apache-2.0
//
// An ordered map whose nodes live in the values (a treap: priorities are a hash of the key, so the shape depends on
// nothing but the keys). No allocation, expected O(log n). The owner locks.
//
//   struct Mapping : TreeNode<Mapping> { ... };      // `key` is the address
//   Tree<Mapping> mappings;
#ifndef GCR_CORE_TREE_H
#define GCR_CORE_TREE_H

#include <stddef.h>
#include <stdint.h>

namespace gcr {

template <typename T>
struct TreeNode {
    uint64_t key = 0;
    T* left = nullptr;
    T* right = nullptr;
};

template <typename T>
class Tree {
  public:
    size_t size() const { return size_; }
    bool empty() const { return size_ == 0; }
    void forget_all() {
        root_ = nullptr;
        size_ = 0;
    }

    T* find(uint64_t key) const {
        T* node = root_;
        while (node != nullptr && node->key != key) node = key < node->key ? node->left : node->right;
        return node;
    }
    T* first() const { return at_least(0); }

    // Smallest key >= `key`.
    T* at_least(uint64_t key) const {
        T* best = nullptr;
        for (T* node = root_; node != nullptr;) {
            if (node->key >= key) best = node;
            node = node->key >= key ? node->left : node->right;
        }
        return best;
    }
    T* after(const T* node) const { return node->key == UINT64_MAX ? nullptr : at_least(node->key + 1); }

    // Greatest key <= `key`.
    T* at_most(uint64_t key) const {
        T* best = nullptr;
        for (T* node = root_; node != nullptr;) {
            if (node->key <= key) best = node;
            node = node->key <= key ? node->right : node->left;
        }
        return best;
    }

    // False when the key is taken; nothing changes then.
    bool insert(T* node) {
        if (find(node->key) != nullptr) return false;
        T** place = &root_;
        while (*place != nullptr && priority(*place) >= priority(node))
            place = node->key < (*place)->key ? &(*place)->left : &(*place)->right;
        split(*place, node->key, &node->left, &node->right);
        *place = node;
        size_++;
        return true;
    }

    void erase(T* node) {
        T** place = &root_;
        while (*place != nullptr && *place != node)
            place = node->key < (*place)->key ? &(*place)->left : &(*place)->right;
        if (*place == nullptr) return;
        *place = join(node->left, node->right);
        node->left = node->right = nullptr;
        size_--;
    }

  private:
    static uint64_t priority(const T* node) {  // the finaliser of splitmix64 (Steele, Lea, Flood 2014)
        uint64_t mixed = node->key + 0x9e3779b97f4a7c15ull;
        mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9ull;
        mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebull;
        return mixed ^ (mixed >> 31);
    }

    static void split(T* node, uint64_t key, T** less, T** more) {
        while (node != nullptr) {
            if (node->key < key) {
                *less = node;
                less = &node->right;
                node = node->right;
            } else {
                *more = node;
                more = &node->left;
                node = node->left;
            }
        }
        *less = *more = nullptr;
    }

    static T* join(T* less, T* more) {
        T* root = nullptr;
        T** place = &root;
        while (less != nullptr && more != nullptr) {
            if (priority(less) >= priority(more)) {
                *place = less;
                place = &less->right;
                less = less->right;
            } else {
                *place = more;
                place = &more->left;
                more = more->left;
            }
        }
        *place = less != nullptr ? less : more;
        return root;
    }

    T* root_ = nullptr;
    size_t size_ = 0;
};

}  // namespace gcr

#endif  // GCR_CORE_TREE_H
