// SPDX-License-Identifier: Apache-2.0
//
// This process as other processes name it, for as long as it lives: a pid comes again, this does not.
#ifndef GCR_CORE_IDENTITY_H
#define GCR_CORE_IDENTITY_H

#include <stdint.h>

namespace gcr {

struct Identity {
    uint64_t process;  // random; never 0
    uint64_t secret[2];  // in what others are given, and nowhere else
};

const Identity* identity();  // drawn at the first call, of any thread; null: the kernel gave no random bytes
void reset_identity_after_fork();  // in the child

}  // namespace gcr

#endif  // GCR_CORE_IDENTITY_H
