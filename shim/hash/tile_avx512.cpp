// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

namespace {

using Register = __m512i;

inline Register zero() {
    return _mm512_setzero_si512();
}

inline Register load(const void* from) {
    return _mm512_loadu_si512(from);
}

inline Register load_key(const void* from) {
    return _mm512_broadcast_i32x4(_mm_loadu_si128(static_cast<const __m128i*>(from)));
}

inline Register add_words(Register a, Register b) {
    return _mm512_add_epi32(a, b);
}

inline Register add_product(Register sum, Register words) {
    return _mm512_add_epi64(sum, _mm512_mul_epu32(words, _mm512_srli_epi64(words, 32)));
}

}  // namespace

#include "columns.h"

void gcr_hash::hash_tile_avx512(const unsigned char* tile, const Word* lane_key, const Word* chunk_key, Repeats& to,
                                const unsigned char* next) {
    hash_columns(tile, lane_key, chunk_key, to, next);
}
