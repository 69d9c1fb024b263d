// SPDX-License-Identifier: Apache-2.0
//
// libgcr_hash.so: the chunk hash on the processor, called by gcr/hashing/native.py. Keeps nothing; any thread may call.
#include <string.h>

#include "tile.h"

namespace gcr_hash {
namespace {

enum Isa : int { kBest = 0, kSse2 = 1, kAvx2 = 2, kAvx512 = 3 };

bool has(int isa) {
    __builtin_cpu_init();
    if (isa == kAvx512) return __builtin_cpu_supports("avx512f");
    if (isa == kAvx2) return __builtin_cpu_supports("avx2");
    return isa == kSse2;
}

int best() {
    for (int isa = kAvx512; isa > kSse2; isa--)
        if (has(isa)) return isa;
    return kSse2;
}

HashTile* tile_hash(int isa) {
    return isa == kAvx512 ? hash_tile_avx512 : isa == kAvx2 ? hash_tile_avx2 : hash_tile_sse2;
}

struct Padded {
    alignas(64) unsigned char bytes[kTileBytes];
};

const unsigned char* pad(Padded& tile, const unsigned char* from, Word length) {
    memcpy(tile.bytes, from, length);
    memset(tile.bytes + length, 0, kTileBytes - length);
    return tile.bytes;
}

void hash_chunk(HashTile* hash_tile, const unsigned char* chunk, Word length, const Word* key, Sum* digest) {
    Repeats level2 = {{0, 0, 0, 0}};
    const Word* chunk_key = key + kLevel2At;
    for (Word tile = 0; (Sum)tile * kTileBytes < length; tile++, chunk_key += kLanes * 2 * kRepeats) {
        const unsigned char* const from = chunk + (Sum)tile * kTileBytes;
        const Word left = length - tile * kTileBytes;
        Padded padded;
        hash_tile(left < kTileBytes ? pad(padded, from, left) : from, key, chunk_key, level2, from + kTileBytes);
    }
    finish(level2, length, key, digest);
}

}  // namespace
}  // namespace gcr_hash

// Two sums for each chunk to `digests`. `key` as gcr.hashing.key expands it, aligned to 16 bytes. `isa` 0: the best that
// there is. Returns the one used, or 0 when this processor lacks it, and then nothing was hashed.
extern "C" __attribute__((visibility("default"))) int gcr_hash_memory(int isa, const unsigned char* data,
                                                                      gcr_hash::Sum size, gcr_hash::Word chunk_bytes,
                                                                      const gcr_hash::Word* key,
                                                                      gcr_hash::Sum* digests) {
    using namespace gcr_hash;
    if (!has(isa) && isa != kBest) return 0;
    const int used = isa == kBest ? best() : isa;
    for (Sum at = 0; at < size; at += chunk_bytes, digests += 2) {
        const Sum left = size - at;
        hash_chunk(tile_hash(used), data + at, left < chunk_bytes ? (Word)left : chunk_bytes, key, digests);
    }
    return used;
}
