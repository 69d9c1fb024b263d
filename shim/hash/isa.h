// SPDX-License-Identifier: Apache-2.0
//
// The instruction sets for which code is built, as gcr/hashing/native.py numbers them.
#ifndef GCR_HASH_ISA_H
#define GCR_HASH_ISA_H

namespace gcr_isa {

enum Isa : int { kBest = 0, kSse2 = 1, kAvx2 = 2, kAvx512 = 3 };

inline bool has(int isa) {
    __builtin_cpu_init();
    if (isa == kAvx512) return __builtin_cpu_supports("avx512f");
    if (isa == kAvx2) return __builtin_cpu_supports("avx2");
    return isa == kSse2;
}

// Returns the set to use, or 0 where this processor has not the one that was asked for. 0 asks for the best.
inline int chosen(int asked) {
    if (asked != kBest) return has(asked) ? asked : 0;
    for (int isa = kAvx512; isa > kSse2; isa--)
        if (has(isa)) return isa;
    return kSse2;
}

}  // namespace gcr_isa

#endif
