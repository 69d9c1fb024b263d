// SPDX-License-Identifier: Apache-2.0
//
// Binaries, functions, launches. A binary is a module of host code (gcr_sim_kernel.h) and belongs to the process.
#include <stdlib.h>
#include <string.h>

#include "front.h"
#include "module.h"

SIM_API aclError aclrtBinaryLoadFromFile(const char* path, aclrtBinaryLoadOptions* options, aclrtBinHandle* out) {
    ENTER();
    REQUIRE(path && out);
    LOCK();
    CONTEXT(context);
    (void)context;
    return front_result(sim_module_load_file(NULL, path, (struct sim_module**)out));
}

SIM_API aclError aclrtBinaryLoadFromData(const void* data, size_t size, const aclrtBinaryLoadOptions* options,
                                         aclrtBinHandle* out) {
    ENTER();
    REQUIRE(data && size && out);
    LOCK();
    CONTEXT(context);
    (void)context;
    return front_result(sim_module_load(NULL, data, (struct sim_module**)out));
}

static void synchronize_all_locked(void) {
    for (struct sim_context* context = sim_contexts(); context; context = context->next)
        if (context->alive) sim_context_synchronize(context);
}

SIM_API aclError aclrtBinaryUnLoad(aclrtBinHandle handle) {
    ENTER();
    LOCK();
    REQUIRE(sim_object_is_locked(handle, SIM_MODULE));
    synchronize_all_locked();
    if (sim_object_is_locked(handle, SIM_MODULE)) sim_module_unload(handle);
    return ACL_SUCCESS;
}

SIM_API aclError aclrtBinaryGetFunction(const aclrtBinHandle handle, const char* name, aclrtFuncHandle* out) {
    ENTER();
    REQUIRE(name && out);
    LOCK();
    REQUIRE(sim_object_is_locked(handle, SIM_MODULE));
    return front_result(sim_module_function(handle, name, (struct sim_function**)out));
}

// ---- launches -------------------------------------------------------------------------------------------------------
static size_t bytes_of_params(const struct sim_function* function) {
    size_t offset = 0, size = 0;
    if (function->params[0]) sim_function_param(function, function->params[0] - 1, &offset, &size);
    return offset + size;
}

struct launch {  // of a kernel whose arguments lie in device memory: they are read when its turn comes
    struct sim_operation operation;
    struct sim_function* function;
    struct sim_grid grid;
    uintptr_t arguments;
    size_t size;
};

// False: the arguments are not in memory that this stream may read.
static bool fetch(const struct launch* self, const struct sim_stream* stream, char* packed) {
    sim_lock();
    struct sim_view view = sim_view_take_locked(stream->context, self->arguments, self->size, false);
    if (view.memory && self->size) memcpy(packed, view.memory, self->size);
    if (!view.memory) sim_context_fail(stream->context, SIM_ILLEGAL_ADDRESS);
    bool fetched = view.memory != NULL;
    sim_view_give_back_locked(&view);
    sim_unlock();
    return fetched;
}

static void run(struct sim_operation* operation, struct sim_stream* stream) {
    const struct launch* self = (struct launch*)operation;
    char packed[SIM_MAX_PARAM_BYTES];
    if (!fetch(self, stream, packed)) return;
    struct sim_operation* kernel = sim_kernel_operation(self->function, &self->grid, NULL, packed);
    if (!kernel) {
        sim_lock();
        sim_context_fail(stream->context, SIM_OUT_OF_MEMORY);
        sim_unlock();
        return;
    }
    kernel->run(kernel, stream);
    kernel->drop(kernel);
}

static void drop(struct sim_operation* operation) {
    free(operation);
}

static struct sim_operation* launch_with_device_arguments(struct sim_function* function, const struct sim_grid* grid,
                                                          const void* arguments, size_t size) {
    struct launch* made = calloc(1, sizeof *made);
    if (!made) return NULL;
    *made = (struct launch){{.run = run, .drop = drop}, function, *grid, (uintptr_t)arguments, size};
    return &made->operation;
}

static aclError launch(aclrtFuncHandle handle, uint32_t blocks, const void* arguments, size_t size, bool on_device,
                       aclrtStream stream) {
    LOCK();
    REQUIRE(sim_object_is_locked(handle, SIM_FUNCTION) && blocks);
    size_t needed = bytes_of_params(handle);
    REQUIRE(size >= needed && needed <= SIM_MAX_PARAM_BYTES && (arguments || !needed));
    struct sim_grid grid = {{blocks, 1, 1}, {1, 1, 1}};
    bool fetched_later = on_device && needed;
    REQUIRE(!fetched_later || sim_reservation_find((uintptr_t)arguments));
    return front_submit(stream, fetched_later ? launch_with_device_arguments(handle, &grid, arguments, needed)
                                              : sim_kernel_operation(handle, &grid, NULL, arguments));
}

SIM_API aclError aclrtLaunchKernel(aclrtFuncHandle function, uint32_t blocks, const void* arguments, size_t size,
                                   aclrtStream stream) {
    ENTER();
    return launch(function, blocks, arguments, size, true, stream);
}

SIM_API aclError aclrtLaunchKernelV2(aclrtFuncHandle function, uint32_t blocks, const void* arguments, size_t size,
                                     aclrtLaunchKernelCfg* config, aclrtStream stream) {
    ENTER();
    return launch(function, blocks, arguments, size, true, stream);
}

SIM_API aclError aclrtLaunchKernelWithHostArgs(aclrtFuncHandle function, uint32_t blocks, aclrtStream stream,
                                               aclrtLaunchKernelCfg* config, void* arguments, size_t size,
                                               aclrtPlaceHolderInfo* places, size_t place_count) {
    ENTER();
    REQUIRE(!place_count);  // placeholders carry pointers into the argument buffer: not simulated
    return launch(function, blocks, arguments, size, false, stream);
}
