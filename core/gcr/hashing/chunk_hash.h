// SPDX-License-Identifier: Apache-2.0
//
// The chunk hash, and the kernel that computes it: one source for CUDA (PTX built from it), HIP (compiled by hiprtc) and
// the host (gcr's own library, and the simulated devices). docs/hash.md has the construction and the proof of its bound.
// Nothing is included: a compiler at run time has no headers.
//
//   chunk   any multiple of 32 KiB; the last one of an allocation may be shorter, and counts as padded with zeros
//   tile    32 KiB of a chunk: 64 rows of 512 bytes; 32 lanes, lane l has bytes [16 l, 16 l + 16) of each row
//   level 1 NH of each lane of each tile (256 words), four times over a Toeplitz key: 4 x 64 bits; key of all lanes
//   level 2 NH of the chunk's level 1, in the order of tiles, lanes and repetitions, four times over a Toeplitz key
//   level 3 two inner products, of level 2 and the chunk's length with coefficients, modulo 2^61 - 1
//
// All words are little-endian. Sums are modulo 2^64, so their order does not matter and every machine finds the same.
#ifndef GCR_CHUNK_HASH_H
#define GCR_CHUNK_HASH_H

#if defined(__CUDACC__) || defined(__HIP__)
#define GCR_HASH_FUNCTION __device__ __forceinline__
#define GCR_HASH_UNROLL _Pragma("unroll")
#else
#define GCR_HASH_FUNCTION static inline
#define GCR_HASH_UNROLL
#endif

namespace gcr_hash {

typedef unsigned int Word;
typedef unsigned long long Sum;

enum : Word {
    kRepeats = 4,
    kLanes = 32,
    kRows = 64,
    kRowBytes = kLanes * 16,
    kTileBytes = kRows * kRowBytes,
    kMaxWarps = 8,
    kBatch = 8,  // rows that a thread has in flight

    // The expanded key, in words: level 1, level 3, level 2 (whose length follows the chunk's).
    kLaneKeyVectors = kRows + 2,
    kCoefficients = 9,
    kLevel3At = kLaneKeyVectors * 4,
    kLevel2At = kLevel3At + 2 * 2 * kCoefficients,
};

struct alignas(16) Vector {
    Word word[4];
};

struct Repeats {
    Sum sum[kRepeats];
};

GCR_HASH_FUNCTION Sum product(Word a, Word key_a, Word b, Word key_b) {
    return (Sum)(Word)(a + key_a) * (Word)(b + key_b);
}

// ---- level 1 ------------------------------------------------------------------------------------------------------
// One row of one lane. Repetition i uses the key from word 2 i on: `a`, `b` and `c` are its next twelve words.
GCR_HASH_FUNCTION void add_row(Repeats& to, const Vector& row, const Vector& a, const Vector& b, const Vector& c) {
    const Word key[10] = {a.word[0], a.word[1], a.word[2], a.word[3], b.word[0],
                          b.word[1], b.word[2], b.word[3], c.word[0], c.word[1]};
    GCR_HASH_UNROLL
    for (Word i = 0; i < kRepeats; i++)
        to.sum[i] += product(row.word[0], key[2 * i], row.word[1], key[2 * i + 1]) +
                     product(row.word[2], key[2 * i + 2], row.word[3], key[2 * i + 3]);
}

// A whole tile. `lane` is the lane's first vector in it.
GCR_HASH_FUNCTION Repeats hash_lane(const Vector* lane, const Vector* key) {
    Repeats found = {{0, 0, 0, 0}};
    Vector a = key[0], b = key[1];
    for (Word first = 0; first < kRows; first += kBatch) {
        Vector rows[kBatch];
        GCR_HASH_UNROLL
        for (Word i = 0; i < kBatch; i++) rows[i] = lane[(first + i) * kLanes];
        GCR_HASH_UNROLL
        for (Word i = 0; i < kBatch; i++) {
            const Vector c = key[first + i + 2];
            add_row(found, rows[i], a, b, c);
            a = b;
            b = c;
        }
    }
    return found;
}

// The vector at `at` of `length` bytes; what lies behind the end is zero and is not read.
GCR_HASH_FUNCTION Vector padded(const unsigned char* bytes, Sum at, Sum length) {
    Vector found = {{0, 0, 0, 0}};
    for (Word i = 0; i < 16 && at + i < length; i++) found.word[i / 4] |= (Word)bytes[at + i] << (8 * (i % 4));
    return found;
}

// A tile that the chunk ends in; `at` is where the lane begins in the chunk.
GCR_HASH_FUNCTION Repeats hash_short_lane(const unsigned char* chunk, Sum at, Sum length, const Vector* key) {
    Repeats found = {{0, 0, 0, 0}};
    for (Word row = 0; row < kRows; row++)
        add_row(found, padded(chunk, at + (Sum)row * kRowBytes, length), key[row], key[row + 1], key[row + 2]);
    return found;
}

// ---- level 2 ------------------------------------------------------------------------------------------------------
GCR_HASH_FUNCTION void add_lane(Repeats& to, const Repeats& lane, const Word* key, Word tile, Word index) {
    const Vector* at = (const Vector*)(key + kLevel2At) + 2 * (tile * kLanes + index);
    const Vector window[4] = {at[0], at[1], at[2], at[3]};
    GCR_HASH_UNROLL
    for (Word i = 0; i < kRepeats; i++) {
        GCR_HASH_UNROLL
        for (Word j = 0; j < kRepeats; j++) {
            const Word first = 2 * (i + j), second = first + 1;
            to.sum[i] += product((Word)lane.sum[j], window[first / 4].word[first % 4], (Word)(lane.sum[j] >> 32),
                                 window[second / 4].word[second % 4]);
        }
    }
}

// ---- level 3 ------------------------------------------------------------------------------------------------------
enum : Sum { kPrime = ((Sum)1 << 61) - 1 };

// Equal modulo the prime, and less than 2^61 + 8.
GCR_HASH_FUNCTION Sum partly_reduced(Sum value) {
    return (value & (Sum)kPrime) + (value >> 61);
}

// Equal to coefficient * word modulo the prime, and less than 2^63; the coefficient is less than 2^61.
GCR_HASH_FUNCTION Sum term(Sum coefficient, Word word) {
    const Sum high = (coefficient >> 32) * word, low = (coefficient & 0xffffffffu) * word;
    return (high >> 29) + ((high & 0x1fffffffu) << 32) + partly_reduced(low);
}

GCR_HASH_FUNCTION Sum inner_product(const Repeats& level2, Word length, const Sum* coefficients) {
    Sum total = partly_reduced(term(coefficients[kCoefficients - 1], length));
    GCR_HASH_UNROLL
    for (Word i = 0; i < kRepeats; i++) {
        total = partly_reduced(total + term(coefficients[2 * i], (Word)level2.sum[i]));
        total = partly_reduced(total + term(coefficients[2 * i + 1], (Word)(level2.sum[i] >> 32)));
    }
    return total >= (Sum)kPrime ? total - (Sum)kPrime : total;
}

GCR_HASH_FUNCTION void finish(const Repeats& level2, Word length, const Word* key, Sum* digest) {
    const Sum* coefficients = (const Sum*)(key + kLevel3At);
    digest[0] = inner_product(level2, length, coefficients);
    digest[1] = inner_product(level2, length, coefficients + kCoefficients);
}

// ---- the kernel: one block a chunk, one warp a tile, steps with a barrier between them ------------------------------
struct Launch {
    const unsigned char* data;  // aligned to 16 bytes
    Sum size;
    Word chunk_bytes;
    const Word* key;
    Sum* digests;  // two for each chunk
};

struct Shared {
    Vector key[kLaneKeyVectors];
    Repeats threads[kMaxWarps * kLanes];
    Repeats parts[8];
};

GCR_HASH_FUNCTION Word length_of(const Launch& launch, Sum chunk) {
    const Sum left = launch.size - chunk * launch.chunk_bytes;
    return left < launch.chunk_bytes ? (Word)left : launch.chunk_bytes;
}

GCR_HASH_FUNCTION void step_key(const Launch& launch, Shared& shared, Word thread, Word threads) {
    for (Word i = thread; i < kLaneKeyVectors; i += threads) shared.key[i] = ((const Vector*)launch.key)[i];
}

GCR_HASH_FUNCTION void step_tiles(const Launch& launch, Shared& shared, Sum chunk, Word thread, Word threads) {
    const unsigned char* const bytes = launch.data + chunk * launch.chunk_bytes;
    const Word length = length_of(launch, chunk), lane = thread % kLanes;
    Repeats found = {{0, 0, 0, 0}};
    for (Word tile = thread / kLanes; (Sum)tile * kTileBytes < length; tile += threads / kLanes) {
        const Sum at = (Sum)tile * kTileBytes + lane * 16;
        const bool whole = (Sum)(tile + 1) * kTileBytes <= length;
        add_lane(
            found,
            whole ? hash_lane((const Vector*)(bytes + at), shared.key) : hash_short_lane(bytes, at, length, shared.key),
            launch.key, tile, lane);
    }
    shared.threads[thread] = found;
}

GCR_HASH_FUNCTION void step_parts(Shared& shared, Word thread, Word threads) {
    if (thread >= 8 * kRepeats) return;
    const Word part = thread / kRepeats, repeat = thread % kRepeats;
    Sum total = 0;
    for (Word i = part; i < threads; i += 8) total += shared.threads[i].sum[repeat];
    shared.parts[part].sum[repeat] = total;
}

GCR_HASH_FUNCTION void step_finish(const Launch& launch, const Shared& shared, Sum chunk, Word thread) {
    if (thread) return;
    Repeats level2 = {{0, 0, 0, 0}};
    for (Word part = 0; part < 8; part++)
        for (Word i = 0; i < kRepeats; i++) level2.sum[i] += shared.parts[part].sum[i];
    finish(level2, length_of(launch, chunk), launch.key, launch.digests + 2 * chunk);
}

}  // namespace gcr_hash

#if defined(__CUDACC__) || defined(__HIP__)
extern "C" __global__ void __launch_bounds__(gcr_hash::kMaxWarps* gcr_hash::kLanes)
    gcr_hash_chunks(const unsigned char* data, gcr_hash::Sum size, gcr_hash::Word chunk_bytes,
                    const gcr_hash::Word* key, gcr_hash::Sum* digests) {
    __shared__ gcr_hash::Shared shared;
    const gcr_hash::Launch launch = {data, size, chunk_bytes, key, digests};
    gcr_hash::step_key(launch, shared, threadIdx.x, blockDim.x);
    __syncthreads();
    gcr_hash::step_tiles(launch, shared, blockIdx.x, threadIdx.x, blockDim.x);
    __syncthreads();
    gcr_hash::step_parts(shared, threadIdx.x, blockDim.x);
    __syncthreads();
    gcr_hash::step_finish(launch, shared, blockIdx.x, threadIdx.x);
}
#endif

#endif
