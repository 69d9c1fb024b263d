// SPDX-License-Identifier: Apache-2.0
//
// Blocks: cuts ranges of equal units into blocks and joins them again; good fit in O(1) (two-level segregated lists,
// Masmano et al. 2004). Knows nothing of addresses or devices: slabs use it for 512-byte units, arenas for pages.
// The owner locks. Host memory only; take() and add() say null or false when that is exhausted.
#ifndef GCR_CORE_BLOCKS_H
#define GCR_CORE_BLOCKS_H

#include <stdint.h>

namespace gcr {

struct Range;
class FreeBlocks;

struct Block {
    Range* range;
    uint32_t start;  // units
    uint32_t size;   // units
    FreeBlocks* free;  // where it is free; null: taken
    Block* before;     // neighbours in the range
    Block* behind;
    Block* list_prev;  // free blocks of a like size
    Block* list_next;
};

// One contiguous stretch of units. Lives inside whatever it describes (a slab, a reservation): `owner` points there.
struct Range {
    void* owner = nullptr;
    uint32_t units = 0;
    uint32_t used = 0;
    Block* first = nullptr;
    bool empty() const { return used == 0; }
};

// Free blocks by size. All zero: none.
class FreeBlocks {
  public:
    uint64_t units() const { return units_; }
    Block* any() const;  // null: none
    Block* fit(uint32_t units) const;  // a block of at least that size; null: none
    void link(Block* block);
    void unlink(Block* block);

  private:
    static constexpr uint32_t kFineBits = 4;  // 16 lists for each power of two: a fit is at most 1/16 too large
    static constexpr uint32_t kFine = 1u << kFineBits;
    static constexpr uint32_t kCoarse = 32;

    struct Bucket {
        uint32_t coarse;
        uint32_t fine;
    };
    static Bucket bucket_of(uint32_t units);

    Block* lists_[kCoarse][kFine] = {};
    uint32_t coarse_map_ = 0;
    uint32_t fine_map_[kCoarse] = {};
    uint64_t units_ = 0;
};

// What only some owners may be given can be kept apart: in FreeBlocks of their own, from which blocks are poured once
// every owner may have them. Blocks are joined with neighbours that are free in the same place.
class Blocks {
  public:
    void
    dispose();  // gives back its host memory, knows no range any more; no destructor: some live as long as the process
    bool add(Range* range, uint32_t units);
    void remove(Range* range);  // only when whole
    bool whole(const Range& range) const;  // one free block, and every stream may have it
    Block* take(uint32_t units) { return take(&free_, units); }
    Block* take(FreeBlocks* from, uint32_t units);
    void give(Block* block) { give(&free_, block); }
    void give(FreeBlocks* to, Block* block);
    void pour(FreeBlocks* from, FreeBlocks* to);
    void pour(FreeBlocks* from) { pour(from, &free_); }
    uint64_t free_units() const { return free_.units(); }

  private:
    struct Chunk;

    Block* new_block();
    void recycle(Block* block);
    Block* join(Block* left, Block* right);
    void trim(Block* block, uint32_t units, FreeBlocks* to);
    void free_and_join(FreeBlocks* to, Block* block);

    FreeBlocks free_;
    Block* spare_ = nullptr;
    Chunk* chunks_ = nullptr;
};

}  // namespace gcr

#endif  // GCR_CORE_BLOCKS_H
