// SPDX-License-Identifier: Apache-2.0
//
// The first copy into device memory. A device has all of its memory at once; here the kernel makes it, a page at a time,
// and takes longer for a page that a mapping touches than for one that is written to the file behind it.
#ifndef GCR_SIM_LANDING_H
#define GCR_SIM_LANDING_H

#include "memory.h"

enum { SIM_LANDING = 2 << 20 };  // bytes from which on it is worth it

struct sim_landing {
    int file;  // -1: none
    const char* memory;  // where the file's bytes from `offset` on are mapped
    uint64_t offset;
};

// Of device memory that one physical allocation holds and that is not there yet. Wants sim_lock, as the view's taking.
struct sim_landing sim_landing_take_locked(const struct sim_view* view, uintptr_t address, size_t size);
// Copies to the file what does not exist yet. False: nothing was copied.
bool sim_landing_copy(const struct sim_landing* landing, char* to, const char* from, size_t size);
void sim_landing_give_back(struct sim_landing* landing);

#endif
