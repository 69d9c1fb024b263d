// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

namespace {

using Register = __m256i;

inline Register zero() {
    return _mm256_setzero_si256();
}

inline Register load(const void* from) {
    return _mm256_loadu_si256(static_cast<const Register*>(from));
}

inline Register load_key(const void* from) {
    return _mm256_broadcastsi128_si256(_mm_loadu_si128(static_cast<const __m128i*>(from)));
}

inline Register add_words(Register a, Register b) {
    return _mm256_add_epi32(a, b);
}

inline Register add_product(Register sum, Register words) {
    return _mm256_add_epi64(sum, _mm256_mul_epu32(words, _mm256_srli_epi64(words, 32)));
}

}  // namespace

#include "columns.h"

void gcr_hash::hash_tile_avx2(const unsigned char* tile, const Word* lane_key, const Word* chunk_key, Repeats& to,
                              const unsigned char* next) {
    hash_columns(tile, lane_key, chunk_key, to, next);
}
