// SPDX-License-Identifier: Apache-2.0
//
// Lives: whether a process that was seen under a pid is there still. A pid comes again, a process that has ended may wait
// for its parent, and one that called exec is another program that holds nothing of what it held.
#ifndef GCR_CORE_LIFE_H
#define GCR_CORE_LIFE_H

#include <stdint.h>

namespace gcr {

struct Life {
    uint64_t start;  // of the process, in ticks since boot
    uint64_t stack;  // of its program: another one after exec. 0: not told, to a process with other rights
};

enum class Alive { kYes, kNo, kUnknown };

// Of /proc, as this process sees it. kNo: it has ended.
Alive read_life(int32_t pid, Life* life);
Alive is_alive(int32_t pid, const Life& life);

}  // namespace gcr

#endif  // GCR_CORE_LIFE_H
