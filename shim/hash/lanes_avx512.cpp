// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "names.h"

namespace {

using Register = __m512i;

constexpr gcr_names::Word kLanes = 16;

inline Register all(gcr_names::Word word) {
    return _mm512_set1_epi32(static_cast<int>(word));
}

inline Register load(const void* from) {
    return _mm512_loadu_si512(from);
}

inline Register add(Register a, Register b) {
    return _mm512_add_epi32(a, b);
}

inline Register exclusive_or(Register a, Register b) {
    return _mm512_xor_si512(a, b);
}

template <int bits>
inline Register rotate(Register words) {
    return _mm512_ror_epi32(words, bits);
}

// Two of four parts of each: the even ones, or the odd ones.
inline Register even(Register a, Register b) {
    return _mm512_shuffle_i32x4(a, b, 0x88);
}

inline Register odd(Register a, Register b) {
    return _mm512_shuffle_i32x4(a, b, 0xdd);
}

inline __attribute__((always_inline)) void transpose(Register* rows) {
    Register twos[kLanes], fours[kLanes];
#pragma GCC unroll 16
    for (int i = 0; i < 16; i += 2) {
        twos[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
        twos[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; i += 4) {
        fours[i] = _mm512_unpacklo_epi64(twos[i], twos[i + 2]);
        fours[i + 1] = _mm512_unpackhi_epi64(twos[i], twos[i + 2]);
        fours[i + 2] = _mm512_unpacklo_epi64(twos[i + 1], twos[i + 3]);
        fours[i + 3] = _mm512_unpackhi_epi64(twos[i + 1], twos[i + 3]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 4; i++) {
        const Register first = even(fours[i], fours[4 + i]), second = even(fours[8 + i], fours[12 + i]);
        const Register third = odd(fours[i], fours[4 + i]), fourth = odd(fours[8 + i], fours[12 + i]);
        rows[i] = even(first, second);
        rows[4 + i] = even(third, fourth);
        rows[8 + i] = odd(first, second);
        rows[12 + i] = odd(third, fourth);
    }
}

}  // namespace

#include "lanes.h"

void gcr_names::compress_avx512(const Inputs& inputs, Value* values) {
    compress_lanes(inputs, values);
}
