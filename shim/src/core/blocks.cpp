// SPDX-License-Identifier: Apache-2.0
#include "core/blocks.h"

#include <stdlib.h>

namespace gcr {
namespace {

constexpr int kExactLooks = 8;

}  // namespace

FreeBlocks::Bucket FreeBlocks::bucket_of(uint32_t units) {
    if (units < kFine) return {0, units};
    uint32_t top = 31 - static_cast<uint32_t>(__builtin_clz(units));
    return {top - kFineBits + 1, (units >> (top - kFineBits)) & (kFine - 1)};
}

Block* FreeBlocks::any() const {
    if (coarse_map_ == 0) return nullptr;
    uint32_t coarse = static_cast<uint32_t>(__builtin_ctz(coarse_map_));
    return lists_[coarse][__builtin_ctz(fine_map_[coarse])];
}

void FreeBlocks::link(Block* block) {
    Bucket bucket = bucket_of(block->size);
    Block*& head = lists_[bucket.coarse][bucket.fine];
    block->free = this;
    block->list_prev = nullptr;
    block->list_next = head;
    if (head != nullptr) head->list_prev = block;
    head = block;
    coarse_map_ |= 1u << bucket.coarse;
    fine_map_[bucket.coarse] |= 1u << bucket.fine;
    units_ += block->size;
}

void FreeBlocks::unlink(Block* block) {
    Bucket bucket = bucket_of(block->size);
    Block*& head = lists_[bucket.coarse][bucket.fine];
    if (block->list_prev != nullptr) block->list_prev->list_next = block->list_next;
    if (block->list_next != nullptr) block->list_next->list_prev = block->list_prev;
    if (head == block) head = block->list_next;
    if (head == nullptr) fine_map_[bucket.coarse] &= ~(1u << bucket.fine);
    if (fine_map_[bucket.coarse] == 0) coarse_map_ &= ~(1u << bucket.coarse);
    block->free = nullptr;
    units_ -= block->size;
}

// An exact one, if it is near; else any block of the first list whose every block is large enough; else whatever fits
// in the list `units` itself is in (the caller would have to add a range otherwise).
Block* FreeBlocks::fit(uint32_t units) const {
    Bucket own = bucket_of(units);
    int looks = kExactLooks;
    for (Block* block = lists_[own.coarse][own.fine]; block != nullptr && looks-- > 0; block = block->list_next)
        if (block->size == units) return block;
    uint32_t fine = own.fine + 1 < kFine ? fine_map_[own.coarse] & (~0u << (own.fine + 1)) : 0;
    uint32_t coarse = own.coarse;
    if (fine == 0) {
        uint32_t larger = coarse + 1 < kCoarse ? coarse_map_ & (~0u << (coarse + 1)) : 0;
        if (larger != 0) {
            coarse = static_cast<uint32_t>(__builtin_ctz(larger));
            fine = fine_map_[coarse];
        }
    }
    if (fine != 0) return lists_[coarse][__builtin_ctz(fine)];
    for (Block* block = lists_[own.coarse][own.fine]; block != nullptr; block = block->list_next)
        if (block->size >= units) return block;
    return nullptr;
}

struct Blocks::Chunk {
    static constexpr int kCount = 64;
    Chunk* next;
    Block blocks[kCount];
};

void Blocks::dispose() {
    while (chunks_ != nullptr) {
        Chunk* next = chunks_->next;
        free(chunks_);
        chunks_ = next;
    }
    *this = Blocks();
}

Block* Blocks::new_block() {
    if (spare_ == nullptr) {
        Chunk* chunk = static_cast<Chunk*>(malloc(sizeof(Chunk)));
        if (chunk == nullptr) return nullptr;
        chunk->next = chunks_;
        chunks_ = chunk;
        for (Block& block : chunk->blocks) recycle(&block);
    }
    Block* block = spare_;
    spare_ = block->list_next;
    return block;
}

void Blocks::recycle(Block* block) {
    block->list_next = spare_;
    spare_ = block;
}

bool Blocks::add(Range* range, uint32_t units) {
    Block* block = new_block();
    if (block == nullptr) return false;
    *block = Block{range, 0, units, nullptr, nullptr, nullptr, nullptr, nullptr};
    range->units = units;
    range->used = 0;
    range->first = block;
    free_.link(block);
    return true;
}

bool Blocks::whole(const Range& range) const {
    return range.first != nullptr && range.first->size == range.units && range.first->free == &free_;
}

void Blocks::remove(Range* range) {
    free_.unlink(range->first);
    recycle(range->first);
    range->first = nullptr;
}

// Gives back what the block has beyond `units`. Without host memory for the rest the block just stays larger.
void Blocks::trim(Block* block, uint32_t units, FreeBlocks* to) {
    if (block->size == units) return;
    Block* rest = new_block();
    if (rest == nullptr) return;
    *rest =
        Block{block->range, block->start + units, block->size - units, nullptr, block, block->behind, nullptr, nullptr};
    if (block->behind != nullptr) block->behind->before = rest;
    block->behind = rest;
    block->size = units;
    to->link(rest);
}

Block* Blocks::take(FreeBlocks* from, uint32_t units) {
    Block* block = from->fit(units);
    if (block == nullptr) return nullptr;
    from->unlink(block);
    trim(block, units, from);
    block->range->used += block->size;
    return block;
}

Block* Blocks::join(Block* left, Block* right) {
    left->size += right->size;
    left->behind = right->behind;
    if (right->behind != nullptr) right->behind->before = left;
    recycle(right);
    return left;
}

void Blocks::free_and_join(FreeBlocks* to, Block* block) {
    if (block->behind != nullptr && block->behind->free == to) {
        to->unlink(block->behind);
        block = join(block, block->behind);
    }
    if (block->before != nullptr && block->before->free == to) {
        to->unlink(block->before);
        block = join(block->before, block);
    }
    to->link(block);
}

void Blocks::give(FreeBlocks* to, Block* block) {
    block->range->used -= block->size;
    free_and_join(to, block);
}

void Blocks::pour(FreeBlocks* from, FreeBlocks* to) {
    while (Block* block = from->any()) {
        from->unlink(block);
        free_and_join(to, block);
    }
}

}  // namespace gcr
