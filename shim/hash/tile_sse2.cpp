// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

namespace {

using Register = __m128i;

inline Register zero() {
    return _mm_setzero_si128();
}

inline Register load(const void* from) {
    return _mm_loadu_si128(static_cast<const Register*>(from));
}

inline Register load_key(const void* from) {
    return _mm_loadu_si128(static_cast<const Register*>(from));
}

inline Register add_words(Register a, Register b) {
    return _mm_add_epi32(a, b);
}

inline Register add_product(Register sum, Register words) {
    return _mm_add_epi64(sum, _mm_mul_epu32(words, _mm_srli_epi64(words, 32)));
}

}  // namespace

#include "columns.h"

void gcr_hash::hash_tile_sse2(const unsigned char* tile, const Word* lane_key, const Word* chunk_key, Repeats& to,
                              const unsigned char* next) {
    hash_columns(tile, lane_key, chunk_key, to, next);
}
