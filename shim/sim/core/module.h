// SPDX-License-Identifier: Apache-2.0
//
// Modules of host code that stand in for device code. All functions want sim_lock held.
#ifndef GCR_SIM_MODULE_H
#define GCR_SIM_MODULE_H

#include "context.h"

enum { SIM_MAX_PARAMS = 64, SIM_MAX_PARAM_BYTES = 4096 };

struct gcr_sim_launch;
struct sim_function {
    struct sim_module* module;
    struct sim_function* next;
    void (*entry)(struct gcr_sim_launch*, void**);
    const uint32_t* params;  // count, then sizes
    char name[];
};

struct sim_global {
    struct sim_global* next;
    struct sim_allocation* allocation;
    char name[];
};

struct sim_module {
    struct sim_context* context;  // null: a library, loaded without one
    struct sim_module* next;
    void* library;  // from dlopen
    struct sim_function* functions;
    struct sim_global* globals;
};

struct sim_grid {
    unsigned grid[3];
    unsigned block[3];
};

sim_result sim_module_load(struct sim_context* context, const void* image, struct sim_module** module);
sim_result sim_module_load_file(struct sim_context* context, const char* path, struct sim_module** module);
void sim_module_unload(struct sim_module* module);
void sim_modules_unload_of(struct sim_context* context);
sim_result sim_module_function(struct sim_module* module, const char* name, struct sim_function** function);
sim_result sim_module_global(struct sim_module* module, struct sim_context* context, const char* name,
                             struct sim_allocation** allocation);
sim_result sim_function_param(const struct sim_function* function, size_t index, size_t* offset, size_t* size);
// `packed` is one buffer with all parameters at their offsets; `params` one pointer each. Either may be null.
struct sim_operation* sim_kernel_operation(struct sim_function* function, const struct sim_grid* grid, void** params,
                                           const void* packed);

#endif
