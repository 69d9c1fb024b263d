// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "names.h"

namespace {

using Register = __m256i;

constexpr gcr_names::Word kLanes = 8;

inline Register all(gcr_names::Word word) {
    return _mm256_set1_epi32(static_cast<int>(word));
}

inline Register load(const void* from) {
    return _mm256_loadu_si256(static_cast<const __m256i*>(from));
}

inline Register add(Register a, Register b) {
    return _mm256_add_epi32(a, b);
}

inline Register exclusive_or(Register a, Register b) {
    return _mm256_xor_si256(a, b);
}

template <int bits>
inline Register rotate(Register words) {
    return _mm256_or_si256(_mm256_srli_epi32(words, bits), _mm256_slli_epi32(words, 32 - bits));
}

template <>
inline Register rotate<16>(Register words) {
    const Register bytes = _mm256_set_epi8(13, 12, 15, 14, 9, 8, 11, 10, 5, 4, 7, 6, 1, 0, 3, 2, 13, 12, 15, 14, 9, 8,
                                           11, 10, 5, 4, 7, 6, 1, 0, 3, 2);
    return _mm256_shuffle_epi8(words, bytes);
}

template <>
inline Register rotate<8>(Register words) {
    const Register bytes = _mm256_set_epi8(12, 15, 14, 13, 8, 11, 10, 9, 4, 7, 6, 5, 0, 3, 2, 1, 12, 15, 14, 13, 8, 11,
                                           10, 9, 4, 7, 6, 5, 0, 3, 2, 1);
    return _mm256_shuffle_epi8(words, bytes);
}

inline __attribute__((always_inline)) void transpose(Register* rows) {
    Register twos[kLanes], fours[kLanes];
#pragma GCC unroll 16
    for (int i = 0; i < 8; i += 2) {
        twos[i] = _mm256_unpacklo_epi32(rows[i], rows[i + 1]);
        twos[i + 1] = _mm256_unpackhi_epi32(rows[i], rows[i + 1]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 8; i += 4) {
        fours[i] = _mm256_unpacklo_epi64(twos[i], twos[i + 2]);
        fours[i + 1] = _mm256_unpackhi_epi64(twos[i], twos[i + 2]);
        fours[i + 2] = _mm256_unpacklo_epi64(twos[i + 1], twos[i + 3]);
        fours[i + 3] = _mm256_unpackhi_epi64(twos[i + 1], twos[i + 3]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 4; i++) {
        rows[i] = _mm256_permute2x128_si256(fours[i], fours[4 + i], 0x20);
        rows[4 + i] = _mm256_permute2x128_si256(fours[i], fours[4 + i], 0x31);
    }
}

}  // namespace

#include "lanes.h"

void gcr_names::compress_avx2(const Inputs& inputs, Value* values) {
    compress_lanes(inputs, values);
}
