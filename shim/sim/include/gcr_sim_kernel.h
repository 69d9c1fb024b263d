// SPDX-License-Identifier: Apache-2.0
//
// What a module of simulated kernels is: an ELF shared object that exports, per kernel `name`,
//     const uint32_t name__params[] = {count, size, size, ...};      sizes in bytes; offsets follow from them
//     void name(struct gcr_sim_launch* launch, void** params);
// and per device variable `name`: `const uint64_t name__global = size;` with its first contents in `name`.
// A kernel runs once for the whole grid, on its stream's thread. Device pointers are numbers: ask for a view first.
#ifndef GCR_SIM_KERNEL_H
#define GCR_SIM_KERNEL_H

#include <stddef.h>
#include <stdint.h>

#define GCR_SIM_KERNEL __attribute__((visibility("default")))

struct gcr_sim_launch {
    unsigned grid[3];
    unsigned block[3];
    // Memory behind a device pointer, or null: then the access was illegal and the context is lost. Valid until the
    // kernel returns.
    void* (*view)(struct gcr_sim_launch* launch, uint64_t pointer, size_t size, int write);
    // Not zero: the context is being destroyed; a kernel that spins must return.
    int (*stopping)(struct gcr_sim_launch* launch);
};

#endif
