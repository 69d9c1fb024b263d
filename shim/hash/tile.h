// SPDX-License-Identifier: Apache-2.0
//
// Levels 1 and 2 of one whole tile on this processor, added to `to`: the sums of hash_lane and add_lane. Built once for
// each instruction set. `chunk_key` begins with this tile's; `next` is memory that will be wanted soon.
#ifndef GCR_HASH_TILE_H
#define GCR_HASH_TILE_H

#include "gcr/hashing/chunk_hash.h"

namespace gcr_hash {

using HashTile = void(const unsigned char* tile, const Word* lane_key, const Word* chunk_key, Repeats& to,
                      const unsigned char* next);

HashTile hash_tile_sse2;
HashTile hash_tile_avx2;
HashTile hash_tile_avx512;

}  // namespace gcr_hash

#endif
