// SPDX-License-Identifier: Apache-2.0
#include "landing.h"

#include <sys/mman.h>
#include <unistd.h>

// A kernel that does not tell has no more memory made than touched.
static bool exists(const char* memory) {
    unsigned char there;
    return mincore((void*)((uintptr_t)memory & ~(uintptr_t)(SIM_PAGE - 1)), SIM_PAGE, &there) || there & 1;
}

struct sim_landing sim_landing_take_locked(const struct sim_view* view, uintptr_t address, size_t size) {
    struct sim_landing none = {.file = -1};
    if (!view->memory || !view->reservation || size < SIM_LANDING || exists(view->memory)) return none;
    const struct sim_mapping* mapping = sim_mapping_find(address);
    size_t at = mapping ? address - mapping->range.start : 0;
    if (!mapping || size > mapping->range.size - at) return none;
    int file = sim_machine_open_file(&mapping->physical->entry);
    return (struct sim_landing){.file = file, .memory = view->memory, .offset = mapping->offset + at};
}

bool sim_landing_copy(const struct sim_landing* landing, char* to, const char* from, size_t size) {
#if defined(__SANITIZE_THREAD__)
    (void)landing, (void)to, (void)from, (void)size;
    return false;  // a program may race with its own copies, and the sanitizer watches what a system call reads
#else
    if (landing->file < 0 || size < SIM_LANDING || exists(to)) return false;
    return pwrite(landing->file, from, size, (off_t)(landing->offset + (uint64_t)(to - landing->memory))) ==
           (ssize_t)size;
#endif
}

void sim_landing_give_back(struct sim_landing* landing) {
    if (landing->file >= 0) close(landing->file);
}
