// SPDX-License-Identifier: Apache-2.0
//
// Kernels compiled into a program: what the compiler's constructors register, and launches by host function. The
// "fat binary" of a program for the simulator is a module of simulated kernels, an ELF image.
#include <stdlib.h>
#include <string.h>

#include "front.h"
#include "module.h"

enum { FAT_BINARY_MAGIC = 0x48495046 };  // "HIPF"

struct wrapper {
    uint32_t magic;
    uint32_t version;
    const void* image;
    void* unused;
};

struct binary {
    const void* image;
    struct sim_module* modules[SIM_MAX_DEVICES];  // loaded at the first launch on the device
};

struct registered {
    struct registered* next;
    struct binary* binary;
    const void* host_function;
    char name[];
};

static struct registered* functions;

// ---- registration -------------------------------------------------------------------------------------------------
SIM_API void** __hipRegisterFatBinary(const void* data) {
    const struct wrapper* wrapper = data;
    if (!wrapper || wrapper->magic != FAT_BINARY_MAGIC) return NULL;
    struct binary* made = calloc(1, sizeof *made);
    if (made) made->image = wrapper->image;
    return (void**)made;
}

SIM_API void __hipRegisterFunction(void** modules, const void* host_function, char* unused, const char* name,
                                   unsigned threads, void* tid, void* bid, void* block, void* grid, int* size) {
    struct registered* made = modules ? calloc(1, sizeof *made + strlen(name) + 1) : NULL;
    if (!made) return;
    made->binary = (struct binary*)modules;
    made->host_function = host_function;
    strcpy(made->name, name);
    LOCK();
    made->next = functions;
    functions = made;
}

SIM_API void __hipUnregisterFatBinary(void** modules) {
    LOCK();
    for (struct registered** link = &functions; *link;) {
        struct registered* item = *link;
        if (item->binary != (struct binary*)modules) {
            link = &item->next;
            continue;
        }
        *link = item->next;
        free(item);
    }
    free(modules);
}

// ---- what a launch needs ------------------------------------------------------------------------------------------
static hipError_t module_of(struct binary* binary, struct sim_module** module) {
    CONTEXT(context);
    struct sim_module** known = &binary->modules[context->device];
    hipError_t result = hipSuccess;
    if (!sim_object_is_locked(*known, SIM_MODULE))  // never loaded, or gone with a reset of the device
        result = front_result(sim_module_load(context, binary->image, known));
    *module = *known;
    return result;
}

static struct sim_function* function_of(const void* host_function, hipError_t* result) {
    struct registered* item = functions;
    while (item && item->host_function != host_function) item = item->next;
    struct sim_module* module;
    struct sim_function* function = NULL;
    *result = item ? module_of(item->binary, &module) : hipErrorInvalidDeviceFunction;
    if (!*result) *result = front_result(sim_module_function(module, item->name, &function));
    return *result ? NULL : function;
}

hipError_t sim_hipGetFuncBySymbol(hipFunction_t* function, const void* symbol) {
    if (!function || !symbol) return hipErrorInvalidValue;
    LOCK();
    hipError_t result;
    *function = function_of(symbol, &result);
    return result;
}

// ---- launches -----------------------------------------------------------------------------------------------------
// By the exported name, as the real runtime does.
static hipError_t launch(const void* host_function, dim3 grid, dim3 block, void** params, size_t shared,
                         hipStream_t stream) {
    hipFunction_t function;
    hipError_t result = sim_hipGetFuncBySymbol(&function, host_function);
    if (result) return result;
    return hipModuleLaunchKernel(function, grid.x, grid.y, grid.z, block.x, block.y, block.z, (unsigned)shared, stream,
                                 params, NULL);
}

hipError_t sim_hipLaunchKernel(const void* function, dim3 grid, dim3 block, void** params, size_t shared,
                               hipStream_t stream) {
    return launch(function, grid, block, params, shared, stream);
}

hipError_t sim_hipLaunchKernel_spt(const void* function, dim3 grid, dim3 block, void** params, size_t shared,
                                   hipStream_t stream) {
    return launch(function, grid, block, params, shared, front_per_thread(stream));
}

hipError_t sim_hipLaunchCooperativeKernel(const void* function, dim3 grid, dim3 block, void** params,
                                          unsigned int shared, hipStream_t stream) {
    return launch(function, grid, block, params, shared, stream);
}

hipError_t sim_hipExtLaunchKernel(const void* function, dim3 grid, dim3 block, void** params, size_t shared,
                                  hipStream_t stream, hipEvent_t start, hipEvent_t stop, int flags) {
    hipError_t result = start ? sim_hipEventRecord(start, stream) : hipSuccess;
    if (!result) result = launch(function, grid, block, params, shared, stream);
    return result || !stop ? result : sim_hipEventRecord(stop, stream);
}

hipError_t sim_hipLaunchKernelExC(const hipLaunchConfig_t* config, const void* function, void** params) {
    if (!config) return hipErrorInvalidValue;
    return launch(function, config->gridDim, config->blockDim, params, config->dynamicSmemBytes, config->stream);
}

// ---- <<<>>>: the shape is pushed, and popped by the stub that then launches --------------------------------------------
static _Thread_local struct {
    dim3 grid, block;
    size_t shared;
    hipStream_t stream;
} pushed;

SIM_API hipError_t __hipPushCallConfiguration(dim3 grid, dim3 block, size_t shared, hipStream_t stream) {
    pushed.grid = grid;
    pushed.block = block;
    pushed.shared = shared;
    pushed.stream = stream;
    return hipSuccess;
}

SIM_API hipError_t __hipPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, hipStream_t* stream) {
    *grid = pushed.grid;
    *block = pushed.block;
    *shared = pushed.shared;
    *stream = pushed.stream;
    return hipSuccess;
}
