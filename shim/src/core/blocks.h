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

struct Block {
    Range* range;
    uint32_t start;  // units
    uint32_t size;   // units
    bool free;
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

class Blocks {
  public:
    void
    dispose();  // gives back its host memory, knows no range any more; no destructor: some live as long as the process
    bool add(Range* range, uint32_t units);
    void remove(Range* range);  // only when empty
    Block* take(uint32_t units);
    void give(Block* block);
    uint64_t free_units() const { return free_units_; }

  private:
    static constexpr uint32_t kFineBits = 4;  // 16 lists for each power of two: a fit is at most 1/16 too large
    static constexpr uint32_t kFine = 1u << kFineBits;
    static constexpr uint32_t kCoarse = 32;

    struct Bucket {
        uint32_t coarse;
        uint32_t fine;
    };
    struct Chunk;

    static Bucket bucket_of(uint32_t units);
    Block* new_block();
    void recycle(Block* block);
    void link(Block* block);
    void unlink(Block* block);
    Block* find_fit(uint32_t units);
    Block* join(Block* left, Block* right);
    void trim(Block* block, uint32_t units);

    Block* lists_[kCoarse][kFine] = {};
    uint32_t coarse_map_ = 0;
    uint32_t fine_map_[kCoarse] = {};
    uint64_t free_units_ = 0;
    Block* spare_ = nullptr;
    Chunk* chunks_ = nullptr;
};

}  // namespace gcr

#endif  // GCR_CORE_BLOCKS_H
