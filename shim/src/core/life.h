// SPDX-License-Identifier: Apache-2.0
//
// Lives: whether a program that was seen under a pid is there still. A pid comes again, a process that has ended may wait
// for its parent, and one that called exec is another program that holds nothing of what it held. The kernel tells them
// apart by where their stacks begin. It does so also after CRIU, which brings a program back with that, and no earlier start.
#ifndef GCR_CORE_LIFE_H
#define GCR_CORE_LIFE_H

#include <stdint.h>

namespace gcr {

enum class Alive { kYes, kNo, kUnknown };

// Of /proc, as this process sees it. kNo: it has ended. `stack`: 0 is told to a process with other rights.
Alive find_program(int32_t pid, uint64_t* stack);
Alive is_alive(int32_t pid, uint64_t stack);

}  // namespace gcr

#endif  // GCR_CORE_LIFE_H
