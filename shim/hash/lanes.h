// SPDX-License-Identifier: Apache-2.0
//
// Included by one source for each instruction set, after it has named, in an unnamed namespace: Register, kLanes (words
// of one), all (of them alike), load, add, exclusive_or, rotate<bits> (to the right), and transpose (of kLanes rows).
#include <string.h>

#include "names.h"

namespace {

using gcr_names::Inputs;
using gcr_names::kBlockWords;
using gcr_names::kNameWords;
using gcr_names::Value;
using gcr_names::Word;

constexpr Word kRounds = 7;
constexpr Word kAhead =
    gcr_names::kMostLanes * gcr_names::kLeafBytes;  // bytes: soon enough, and still in the cache by then

// The words of a message in the order in which each round takes them.
constexpr unsigned char kOrder[kRounds][kBlockWords] = {
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8},
    {3, 4, 10, 12, 13, 2, 7, 14, 6, 5, 9, 0, 11, 15, 8, 1}, {10, 7, 12, 9, 14, 3, 13, 15, 4, 0, 11, 2, 5, 8, 1, 6},
    {12, 13, 9, 11, 15, 10, 14, 8, 7, 2, 5, 3, 0, 1, 6, 4}, {9, 14, 11, 5, 8, 12, 15, 1, 13, 3, 0, 10, 2, 6, 4, 7},
    {11, 15, 5, 0, 1, 9, 8, 6, 14, 10, 2, 12, 3, 4, 7, 13},
};

inline __attribute__((always_inline)) void mix(Register& a, Register& b, Register& c, Register& d, Register x,
                                               Register y) {
    a = add(add(a, b), x);
    d = rotate<16>(exclusive_or(d, a));
    c = add(c, d);
    b = rotate<12>(exclusive_or(b, c));
    a = add(add(a, b), y);
    d = rotate<8>(exclusive_or(d, a));
    c = add(c, d);
    b = rotate<7>(exclusive_or(b, c));
}

template <Word round>
inline __attribute__((always_inline)) void mix_all(Register* v, const Register* message) {
    constexpr const unsigned char* at = kOrder[round];
#pragma GCC unroll 16
    for (Word i = 0; i < 4; i++) mix(v[i], v[4 + i], v[8 + i], v[12 + i], message[at[2 * i]], message[at[2 * i + 1]]);
#pragma GCC unroll 16
    for (Word i = 0; i < 4; i++)
        mix(v[i], v[4 + (i + 1) % 4], v[8 + (i + 2) % 4], v[12 + (i + 3) % 4], message[at[8 + 2 * i]],
            message[at[9 + 2 * i]]);
}

// Loads one block of each lane: a register for each of its words.
inline __attribute__((always_inline)) void load_block(const Inputs& inputs, Word block, Register* message) {
    const uint64_t from = static_cast<uint64_t>(block) * gcr_names::kBlockBytes;
#pragma GCC unroll 16
    for (Word word = 0; word < kBlockWords; word += kLanes) {
#pragma GCC unroll 16
        for (Word lane = 0; lane < kLanes; lane++)
            message[word + lane] = load(inputs.at[lane] + from + word * sizeof(Word));
        transpose(message + word);
    }
#pragma GCC unroll 16
    for (Word lane = 0; lane < kLanes; lane++) __builtin_prefetch(inputs.at[lane] + from + kAhead, 0, 2);
}

inline __attribute__((always_inline)) void compress_block(Register* value, const Register* message, Register low,
                                                          Register high, Word bytes, Word flags) {
    Register v[kBlockWords];
#pragma GCC unroll 16
    for (Word i = 0; i < kNameWords; i++) v[i] = value[i];
#pragma GCC unroll 16
    for (Word i = 0; i < 4; i++) v[8 + i] = all(gcr_names::kStart[i]);
    v[12] = low;
    v[13] = high;
    v[14] = all(bytes);
    v[15] = all(flags);
    mix_all<0>(v, message);
    mix_all<1>(v, message);
    mix_all<2>(v, message);
    mix_all<3>(v, message);
    mix_all<4>(v, message);
    mix_all<5>(v, message);
    mix_all<6>(v, message);
#pragma GCC unroll 16
    for (Word i = 0; i < kNameWords; i++) value[i] = exclusive_or(v[i], v[8 + i]);
}

inline void compress_lanes(const Inputs& inputs, Value* values) {
    Word lows[kLanes], highs[kLanes];
    for (Word lane = 0; lane < kLanes; lane++) {
        const uint64_t counter = inputs.counter + (inputs.count ? lane : 0);
        lows[lane] = static_cast<Word>(counter);
        highs[lane] = static_cast<Word>(counter >> 32);
    }
    const Register low = load(lows), high = load(highs);
    Register value[kNameWords];
    for (Word i = 0; i < kNameWords; i++) value[i] = all(inputs.key[i]);
    for (Word block = 0; block < inputs.blocks; block++) {
        const bool is_last = block + 1 == inputs.blocks;
        Register message[kBlockWords];
        load_block(inputs, block, message);
        compress_block(value, message, low, high, is_last ? inputs.last_bytes : gcr_names::kBlockBytes,
                       inputs.flags | (block ? 0 : inputs.first) | (is_last ? inputs.last : 0));
    }
    Word words[kNameWords][kLanes];
    memcpy(words, value, sizeof words);
    for (Word lane = 0; lane < kLanes; lane++)
        for (Word i = 0; i < kNameWords; i++) values[lane].words[i] = words[i][lane];
}

}  // namespace
