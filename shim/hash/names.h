// SPDX-License-Identifier: Apache-2.0
//
// BLAKE3 (J. O'Connor, J.-P. Aumasson, S. Neves, Z. Wilcox-O'Hearn: BLAKE3, 2020-01-09), which names chunks: the numbers
// of the specification, and the function of its inputs that is built once for each instruction set.
#ifndef GCR_HASH_NAMES_H
#define GCR_HASH_NAMES_H

#include <stdint.h>

namespace gcr_names {

using Word = uint32_t;
using Bytes = unsigned char;

constexpr Word kNameWords = 8;
constexpr Word kBlockWords = 16;
constexpr Word kBlockBytes = 64;
constexpr Word kLeafBytes = 1024;  // the specification's "chunk"; a chunk of gcr has many
constexpr Word kMostLanes = 16;

enum Flag : Word { kChunkStart = 1, kChunkEnd = 2, kParent = 4, kRoot = 8, kKeyed = 16 };

constexpr Word kStart[kNameWords] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                     0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

struct Value {
    Word words[kNameWords];
};

// Inputs of the same shape, one for each lane. `first`, `last`: flags of the first and of the last block besides `flags`.
// `last_bytes`: those of the last block that count; the others are zero. `counter`: of lane 0; others count on from
// there where they `count`.
struct Inputs {
    const Bytes* at[kMostLanes];
    Word blocks;
    Word last_bytes;
    const Word* key;
    uint64_t counter;
    bool count;
    Word flags;
    Word first;
    Word last;
};

// Writes the value of each lane. Reads all lanes, also where the caller needs fewer.
using Compress = void(const Inputs& inputs, Value* values);

Compress compress_sse2;  // 4 lanes
Compress compress_avx2;  // 8
Compress compress_avx512;  // 16

}  // namespace gcr_names

#endif
