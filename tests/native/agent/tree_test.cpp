// SPDX-License-Identifier: Apache-2.0
//
// Tree against std::map, and the growable array.
#include "core/tree.h"

#include <map>
#include <random>
#include <vector>

#include "check.h"
#include "core/array.h"

namespace {

struct Node : gcr::TreeNode<Node> {
    int value;
};

void agrees_with_a_map(unsigned seed) {
    std::mt19937_64 dice(seed);
    std::map<uint64_t, Node*> model;
    gcr::Tree<Node> tree;
    for (int step = 0; step < 30000; step++) {
        uint64_t key = dice() % 3000 * (step % 2 == 0 ? 1 : 0x200000);
        auto found = model.find(key);
        CHECK(tree.find(key) == (found == model.end() ? nullptr : found->second));
        if (found == model.end()) {
            Node* node = new Node;
            node->key = key;
            CHECK(tree.insert(node));
            model[key] = node;
        } else if (dice() % 2 == 0) {
            tree.erase(found->second);
            delete found->second;
            model.erase(found);
        } else {
            Node twin;
            twin.key = key;
            CHECK(!tree.insert(&twin));
        }
        uint64_t asked = dice() % 3000;
        auto next = model.lower_bound(asked);
        CHECK(tree.at_least(asked) == (next == model.end() ? nullptr : next->second));
        auto above = model.upper_bound(asked);
        CHECK(tree.at_most(asked) == (above == model.begin() ? nullptr : std::prev(above)->second));
    }
    CHECK(tree.size() == model.size());
    auto expected = model.begin();
    for (Node* node = tree.first(); node != nullptr; node = tree.after(node)) CHECK(node == (expected++)->second);
    CHECK(expected == model.end());
    for (auto& [key, node] : model) delete node;
}

void the_ends_of_the_key_space() {
    gcr::Tree<Node> tree;
    Node low, high;
    low.key = 0;
    high.key = UINT64_MAX;
    CHECK(tree.insert(&low) && tree.insert(&high));
    CHECK(tree.first() == &low && tree.after(&low) == &high && tree.after(&high) == nullptr);
    CHECK(tree.at_most(UINT64_MAX) == &high && tree.at_most(5) == &low);
}

// Keys in order, as ids and addresses come: the shape must not become a list.
void sorted_keys_are_no_list() {
    gcr::Tree<Node> tree;
    std::vector<Node> nodes(200000);
    for (size_t i = 0; i < nodes.size(); i++) {
        nodes[i].key = 1 + i;
        CHECK(tree.insert(&nodes[i]));
    }
    for (Node& node : nodes) CHECK(tree.find(node.key) == &node);
    for (Node& node : nodes) tree.erase(&node);
    CHECK(tree.empty());
}

void arrays_grow() {
    gcr::ScratchArray<int> numbers;
    for (int i = 0; i < 1000; i++) CHECK(numbers.push(i));
    CHECK(numbers.size() == 1000 && numbers[999] == 999);
    numbers.swap_out(0);
    CHECK(numbers.size() == 999 && numbers[0] == 999);
    CHECK(numbers.pop() == 998);
}

}  // namespace

int main() {
    for (unsigned seed = 1; seed <= 3; seed++) agrees_with_a_map(seed);
    the_ends_of_the_key_space();
    sorted_keys_are_no_list();
    arrays_grow();
}
