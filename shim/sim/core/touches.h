// SPDX-License-Identifier: Apache-2.0
//
// What device threads work on right now, so that memory taken away under them is told: on hardware that is a fault of the
// context at best. Each is a line in `violations` of the machine's directory; a test that finds one there has failed.
#ifndef GCR_SIM_TOUCHES_H
#define GCR_SIM_TOUCHES_H

#include <stddef.h>
#include <stdint.h>

struct sim_touch {
    uintptr_t start;
    size_t size;
    struct sim_touch* next;
    struct sim_touch** link;
};

struct sim_touch* sim_touch_begin_locked(uintptr_t start, size_t size);  // null: no memory; then it is not watched
void sim_touch_end_locked(struct sim_touch* touch);  // or null
void sim_touch_unmapped_locked(uintptr_t start, size_t size);  // records what works there

#endif
