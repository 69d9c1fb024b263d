// SPDX-License-Identifier: Apache-2.0
//
// Blocks against a map of units: no unit is given twice, none is lost, neighbours join, empty ranges can go.
#include "core/blocks.h"

#include <map>
#include <random>
#include <set>
#include <vector>

#include "check.h"

namespace {

using gcr::Block;
using gcr::Blocks;
using gcr::Range;

struct Model {
    std::map<const Range*, std::vector<bool>> taken;

    void take(const Block& block) {
        for (uint32_t unit = block.start; unit < block.start + block.size; unit++) {
            CHECK(!taken[block.range][unit]);
            taken[block.range][unit] = true;
        }
    }
    void give(const Block& block) {
        for (uint32_t unit = block.start; unit < block.start + block.size; unit++) taken[block.range][unit] = false;
    }
    uint64_t free_units() const {
        uint64_t count = 0;
        for (auto& [range, units] : taken)
            for (bool used : units) count += used ? 0 : 1;
        return count;
    }
};

void one_range_is_cut_and_joined() {
    Blocks blocks;
    Range range;
    CHECK(blocks.add(&range, 100));
    Block* a = blocks.take(30);
    Block* b = blocks.take(30);
    Block* c = blocks.take(40);
    CHECK(a && b && c && blocks.take(1) == nullptr);
    blocks.give(a);
    blocks.give(c);
    CHECK(blocks.take(41) == nullptr);
    blocks.give(b);
    CHECK(range.empty());
    Block* whole = blocks.take(100);
    CHECK(whole != nullptr && whole->start == 0 && whole->size == 100);
    blocks.give(whole);
    blocks.remove(&range);
    CHECK(blocks.take(1) == nullptr);
    blocks.dispose();
}

// Every size that is free in one piece must be found, however the pieces were made.
void whatever_fits_is_found() {
    for (uint32_t size = 1; size < 5000; size += 7) {
        Blocks blocks;
        Range range;
        CHECK(blocks.add(&range, size));
        Block* block = blocks.take(size);
        CHECK(block != nullptr && block->size == size);
        blocks.give(block);
        block = blocks.take(size / 2 + 1);
        CHECK(block != nullptr && block->size == size / 2 + 1);
        CHECK(size < 2 || (size - block->size) == 0 || blocks.take(size - block->size) != nullptr);
        blocks.dispose();
    }
}

void random_takes_and_gives(unsigned seed) {
    std::mt19937 dice(seed);
    Blocks blocks;
    Model model;
    std::vector<Range*> ranges;
    std::vector<Block*> held;
    for (int step = 0; step < 20000; step++) {
        uint32_t wanted = 1 + dice() % (step % 5 == 0 ? 2000 : 20);
        if (dice() % 2 == 0 || held.empty()) {
            Block* block = blocks.take(wanted);
            if (block == nullptr) {
                ranges.push_back(new Range);
                model.taken[ranges.back()].resize(4096);
                CHECK(blocks.add(ranges.back(), 4096));
                block = blocks.take(wanted);
            }
            CHECK(block != nullptr && block->size == wanted && !block->free);
            model.take(*block);
            held.push_back(block);
        } else {
            size_t which = dice() % held.size();
            model.give(*held[which]);
            blocks.give(held[which]);
            held.erase(held.begin() + static_cast<long>(which));
        }
        if (step % 1000 == 0) CHECK(blocks.free_units() == model.free_units());
    }
    for (Block* block : held) blocks.give(block);
    for (Range* range : ranges) {
        CHECK(range->empty());
        blocks.remove(range);
        delete range;
    }
    CHECK(blocks.free_units() == 0);
    blocks.dispose();
}

struct Mix {
    std::mt19937 dice{7};
    Blocks blocks;
    std::vector<Range*> ranges;
    std::vector<Block*> held;
    uint64_t used = 0, peak = 0;

    ~Mix() {
        for (Range* range : ranges) delete range;
        blocks.dispose();
    }
    void take() {
        uint32_t wanted = 1 + static_cast<uint32_t>(dice() % 8 == 0 ? dice() % 1500 : dice() % 40);
        Block* block = blocks.take(wanted);
        if (block == nullptr) {
            ranges.push_back(new Range);
            CHECK(blocks.add(ranges.back(), 4096));
            block = blocks.take(wanted);
        }
        held.push_back(block);
        used += wanted;
        if (used > peak) peak = used;
    }
    void give() {
        size_t which = dice() % held.size();
        used -= held[which]->size;
        blocks.give(held[which]);
        held[which] = held.back();
        held.pop_back();
    }
    double reserved_over_peak() const { return static_cast<double>(ranges.size()) * 4096 / static_cast<double>(peak); }
};

// What a program allocates and keeps wastes next to nothing; random sizes with random lifetimes, the worst case, a tenth.
void little_is_wasted() {
    Mix mix;
    for (int i = 0; i < 20000; i++) mix.take();
    CHECK(mix.reserved_over_peak() < 1.01);
    for (int i = 0; i < 100000; i++) mix.dice() % 2 == 0 ? mix.take() : mix.give();
    CHECK(mix.reserved_over_peak() < 1.15);
}

}  // namespace

int main() {
    one_range_is_cut_and_joined();
    whatever_fits_is_found();
    for (unsigned seed = 1; seed <= 5; seed++) random_takes_and_gives(seed);
    little_is_wasted();
}
