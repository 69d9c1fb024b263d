// SPDX-License-Identifier: Apache-2.0
//
// Names of chunks, BLAKE3, called by gcr/hashing/names.py. Keeps nothing; any thread may call.
//
// Leaves of 1 KiB are compressed side by side, then pairs of their values, level by level; a value without a partner goes
// up as it is. That makes the tree of the specification, whose left parts are as large as they can be.
#include "names.h"

#include <string.h>

#include "isa.h"

namespace gcr_names {
namespace {

constexpr uint64_t kMostLeaves = 256;  // of a part, whose values lie on the stack
constexpr uint64_t kPartBytes = kMostLeaves * kLeafBytes;
constexpr uint64_t kMostParts = 64;

// One way to compute names: the lanes of one instruction set, and a key.
struct Way {
    Compress* compress;
    Word lanes;
    const Word* key;
    Word flags;
};

Word fewer(Word a, uint64_t b) {
    return b < a ? static_cast<Word>(b) : a;
}

// Compresses `count` inputs of `stride` bytes each, one behind the other, where all of `shape` is theirs.
void compress_each(const Way& way, const Bytes* from, uint64_t count, Word stride, Inputs shape, Value* values) {
    Value found[kMostLanes];
    for (uint64_t done = 0; done < count; done += way.lanes) {
        const Word some = fewer(way.lanes, count - done);
        for (Word lane = 0; lane < way.lanes; lane++)  // the last one stands in for those that there are not
            shape.at[lane] = from + (done + fewer(lane, some - 1)) * stride;
        way.compress(shape, found);
        memcpy(values + done, found, some * sizeof *values);
        shape.counter += shape.count ? some : 0;
    }
}

Inputs shape_of(const Way& way, Word blocks, Word last_bytes, Word flags) {
    Inputs shape = {};
    shape.key = way.key;
    shape.blocks = blocks;
    shape.last_bytes = last_bytes;
    shape.flags = way.flags | flags;
    return shape;
}

// Joins values until one is left, the first. `root`: flags of the last pair.
void join(const Way& way, Value* values, uint64_t count, Word root) {
    while (count > 1) {
        const uint64_t pairs = count / 2;
        const Inputs shape = shape_of(way, 1, kBlockBytes, kParent | (count == 2 ? root : 0));
        compress_each(way, reinterpret_cast<const Bytes*>(values), pairs, kBlockBytes, shape, values);
        if (count % 2) values[pairs] = values[count - 1];
        count = pairs + count % 2;
    }
}

// The last leaf, of any size. `root`: flags of its last block.
void compress_last(const Way& way, const Bytes* leaf, Word size, uint64_t number, Word root, Value* value) {
    Bytes padded[kLeafBytes] = {};
    memcpy(padded, leaf, size);
    const Word blocks = size ? (size + kBlockBytes - 1) / kBlockBytes : 1;
    Inputs shape = shape_of(way, blocks, size - (blocks - 1) * kBlockBytes, 0);
    shape.first = kChunkStart;
    shape.last = kChunkEnd | root;
    shape.counter = number;
    compress_each(way, padded, 1, kLeafBytes, shape, value);
}

// One part of a chunk, from the leaf `number` on. `root`: flags of the last step.
Value part(const Way& way, const Bytes* data, uint64_t size, uint64_t number, Word root) {
    Value values[kMostLeaves];
    const uint64_t leaves = size ? (size + kLeafBytes - 1) / kLeafBytes : 1;
    const uint64_t alike = leaves > 1 && size % kLeafBytes == 0 ? leaves : leaves - 1;
    Inputs shape = shape_of(way, kLeafBytes / kBlockBytes, kBlockBytes, 0);
    shape.first = kChunkStart;
    shape.last = kChunkEnd;
    shape.counter = number;
    shape.count = true;
    compress_each(way, data, alike, kLeafBytes, shape, values);
    if (alike < leaves)
        compress_last(way, data + alike * kLeafBytes, static_cast<Word>(size - alike * kLeafBytes), number + alike,
                      leaves == 1 ? root : 0, values + alike);
    join(way, values, leaves, root);
    return values[0];
}

bool name(const Way& way, const Bytes* data, uint64_t size, Bytes* to) {
    Value values[kMostParts];
    if (size > kMostParts * kPartBytes) return false;
    uint64_t count = 0;
    for (uint64_t at = 0; at < size || !count; at += kPartBytes) {
        const uint64_t left = size - at;
        const Word root = size <= kPartBytes ? static_cast<Word>(kRoot) : 0;
        values[count++] = part(way, data + at, left < kPartBytes ? left : kPartBytes, at / kLeafBytes, root);
    }
    join(way, values, count, kRoot);
    memcpy(to, values, sizeof *values);  // words are little-endian, as the name's
    return true;
}

Way way_of(int isa, const Word* key, Word flags) {
    if (isa == gcr_isa::kAvx512) return {compress_avx512, 16, key, flags};
    if (isa == gcr_isa::kAvx2) return {compress_avx2, 8, key, flags};
    return {compress_sse2, 4, key, flags};
}

}  // namespace
}  // namespace gcr_names

// The names of `count` chunks, 32 bytes each, to `names`. `key`: 32 bytes, or null: names have none. `isa` 0: the best
// that there is. Returns the one used; 0 when this processor lacks it, -1 for a chunk of more than 16 MiB: `names` has
// any bytes then.
extern "C" __attribute__((visibility("default"))) int gcr_name_chunks(int isa, const unsigned char* const* chunks,
                                                                      const uint64_t* sizes, uint64_t count,
                                                                      const unsigned char* key, unsigned char* names) {
    using namespace gcr_names;
    const int used = gcr_isa::chosen(isa);
    if (!used) return 0;
    Word words[kNameWords];
    memcpy(words, key ? static_cast<const void*>(key) : kStart, sizeof words);
    const Way way = way_of(used, words, key ? static_cast<Word>(kKeyed) : 0);
    for (uint64_t i = 0; i < count; i++)
        if (!name(way, chunks[i], sizes[i], names + i * sizeof words)) return -1;
    return used;
}
