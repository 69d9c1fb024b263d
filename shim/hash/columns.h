// SPDX-License-Identifier: Apache-2.0
//
// Included by one source for each instruction set, after it has named, in an unnamed namespace: Register, load,
// load_key (sixteen bytes, repeated), add_words, add_product (of the two words of each 64-bit element, to a sum), and zero.
#include <string.h>

#include "tile.h"

namespace {

using gcr_hash::kRepeats;
using gcr_hash::Repeats;
using gcr_hash::Sum;
using gcr_hash::Word;

constexpr Word kSideBySide = 2;  // registers of a row at a time: all sums stay in registers
constexpr Word kColumnBytes = kSideBySide * sizeof(Register);
constexpr Word kLineBytes = 64;

struct Column {
    Register sum[kRepeats][kSideBySide];
};

void prefetch(const unsigned char* from) {
    for (Word at = 0; at < kColumnBytes; at += kLineBytes) __builtin_prefetch(from + at, 0, 2);
}

inline void add_row(Column& to, const unsigned char* row, const Word* key) {
    Register message[kSideBySide];
    for (Word v = 0; v < kSideBySide; v++) message[v] = load(row + v * sizeof(Register));
    for (Word i = 0; i < kRepeats; i++) {
        const Register words = load_key(key + 2 * i);
        for (Word v = 0; v < kSideBySide; v++) to.sum[i][v] = add_product(to.sum[i][v], add_words(message[v], words));
    }
}

inline Sum total(const Register* sums, Word count) {
    Sum parts[kSideBySide * sizeof(Register) / sizeof(Sum)];
    memcpy(parts, sums, count * sizeof(Register));
    Sum found = 0;
    for (Word i = 0; i < count * sizeof(Register) / sizeof(Sum); i++) found += parts[i];
    return found;
}

// Each register holds two sums of each lane in it.
inline void store(const Column& from, Repeats* lanes) {
    for (Word i = 0; i < kRepeats; i++) {
        Sum sums[kColumnBytes / sizeof(Sum)];
        memcpy(sums, from.sum[i], sizeof sums);
        for (Word lane = 0; lane < kColumnBytes / 16; lane++) lanes[lane].sum[i] = sums[2 * lane] + sums[2 * lane + 1];
    }
}

inline void level_1(const unsigned char* tile, const Word* key, Repeats* lanes, const unsigned char* next) {
    for (Word at = 0; at < gcr_hash::kRowBytes; at += kColumnBytes) {
        Column column;
        for (auto& sums : column.sum)
            for (Register& sum : sums) sum = zero();
        for (Word row = 0; row < gcr_hash::kRows; row++) {
            prefetch(next + gcr_hash::kRows * at + row * kColumnBytes);
            add_row(column, tile + row * gcr_hash::kRowBytes + at, key + 4 * row);
        }
        store(column, lanes + at / 16);
    }
}

// The lanes' sums lie in memory as the words that level 2 takes, in their order.
inline void level_2(const Repeats* lanes, const Word* key, Repeats& to) {
    constexpr Word kWords = sizeof(Register) / sizeof(Word);
    const Word* words = reinterpret_cast<const Word*>(lanes);
    Register sums[kRepeats];
    for (Register& sum : sums) sum = zero();
    for (Word at = 0; at < gcr_hash::kLanes * sizeof(Repeats) / sizeof(Word); at += kWords) {
        const Register message = load(words + at);
        for (Word i = 0; i < kRepeats; i++) sums[i] = add_product(sums[i], add_words(message, load(key + at + 2 * i)));
    }
    for (Word i = 0; i < kRepeats; i++) to.sum[i] += total(&sums[i], 1);
}

inline void hash_columns(const unsigned char* tile, const Word* lane_key, const Word* chunk_key, Repeats& to,
                         const unsigned char* next) {
    alignas(64) Repeats lanes[gcr_hash::kLanes];
    level_1(tile, lane_key, lanes, next);
    level_2(lanes, chunk_key, to);
}

}  // namespace
