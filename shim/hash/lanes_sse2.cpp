// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "names.h"

namespace {

using Register = __m128i;

constexpr gcr_names::Word kLanes = 4;

inline Register all(gcr_names::Word word) {
    return _mm_set1_epi32(static_cast<int>(word));
}

inline Register load(const void* from) {
    return _mm_loadu_si128(static_cast<const __m128i*>(from));
}

inline Register add(Register a, Register b) {
    return _mm_add_epi32(a, b);
}

inline Register exclusive_or(Register a, Register b) {
    return _mm_xor_si128(a, b);
}

template <int bits>
inline Register rotate(Register words) {
    return _mm_or_si128(_mm_srli_epi32(words, bits), _mm_slli_epi32(words, 32 - bits));
}

inline __attribute__((always_inline)) void transpose(Register* rows) {
    const Register low = _mm_unpacklo_epi32(rows[0], rows[1]), high = _mm_unpackhi_epi32(rows[0], rows[1]);
    const Register low2 = _mm_unpacklo_epi32(rows[2], rows[3]), high2 = _mm_unpackhi_epi32(rows[2], rows[3]);
    rows[0] = _mm_unpacklo_epi64(low, low2);
    rows[1] = _mm_unpackhi_epi64(low, low2);
    rows[2] = _mm_unpacklo_epi64(high, high2);
    rows[3] = _mm_unpackhi_epi64(high, high2);
}

}  // namespace

#include "lanes.h"

void gcr_names::compress_sse2(const Inputs& inputs, Value* values) {
    compress_lanes(inputs, values);
}
