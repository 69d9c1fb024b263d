// SPDX-License-Identifier: Apache-2.0
//
// Modules, libraries, functions, launches.
#include "module.h"

#include <string.h>

#include "capture.h"
#include "front.h"

#define MODULE(module) \
    if (!sim_object_is_locked(module, SIM_MODULE)) return CUDA_ERROR_INVALID_HANDLE
#define FUNCTION(function) \
    if (!sim_object_is_locked(function, SIM_FUNCTION)) return CUDA_ERROR_INVALID_HANDLE

SIM_API CUresult cuModuleLoadData(CUmodule* module, const void* image) {
    ENTER();
    if (!module || !image) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    CONTEXT(context);
    return front_result(sim_module_load(context, image, module));
}

SIM_API CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned count, int* options, void** values) {
    return cuModuleLoadData(module, image);
}

SIM_API CUresult cuModuleLoadFatBinary(CUmodule* module, const void* image) {
    return cuModuleLoadData(module, image);
}

SIM_API CUresult cuModuleLoad(CUmodule* module, const char* path) {
    ENTER();
    if (!module || !path) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    CONTEXT(context);
    return front_result(sim_module_load_file(context, path, module));
}

SIM_API CUresult cuModuleUnload(CUmodule module) {
    ENTER();
    LOCK();
    MODULE(module);
    if (module->context) sim_context_synchronize(module->context);
    sim_module_unload(module);
    return CUDA_SUCCESS;
}

SIM_API CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
    ENTER();
    if (!function || !name) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    MODULE(module);
    return front_result(sim_module_function(module, name, function));
}

SIM_API CUresult cuModuleGetLoadingMode(int* mode) {
    ENTER();
    if (!mode) return CUDA_ERROR_INVALID_VALUE;
    *mode = 1;
    return CUDA_SUCCESS;
}

static CUresult global(CUdeviceptr* pointer, size_t* size, CUmodule module, const char* name) {
    if (!name) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    MODULE(module);
    CONTEXT(context);
    struct sim_allocation* allocation;
    sim_result result = sim_module_global(module, module->context ? module->context : context, name, &allocation);
    if (result) return front_result(result);
    if (pointer) *pointer = allocation->range.start;
    if (size) *size = allocation->range.size;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuModuleGetGlobal_v2(CUdeviceptr* pointer, size_t* size, CUmodule module, const char* name) {
    ENTER();
    return global(pointer, size, module, name);
}

// ---- libraries ----------------------------------------------------------------------------------------------------
SIM_API CUresult cuLibraryLoadData(CUlibrary* library, const void* image, int* jit, void** jit_values,
                                   unsigned jit_count, int* options, void** values, unsigned count) {
    ENTER();
    if (!library || !image) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    return front_result(sim_module_load(NULL, image, library));
}

SIM_API CUresult cuLibraryLoadFromFile(CUlibrary* library, const char* path, int* jit, void** jit_values,
                                       unsigned jit_count, int* options, void** values, unsigned count) {
    ENTER();
    if (!library || !path) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    return front_result(sim_module_load_file(NULL, path, library));
}

SIM_API CUresult cuLibraryUnload(CUlibrary library) {
    return cuModuleUnload(library);
}

SIM_API CUresult cuLibraryGetModule(CUmodule* module, CUlibrary library) {
    ENTER();
    if (!module) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    MODULE(library);
    *module = library;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuLibraryGetKernel(CUkernel* kernel, CUlibrary library, const char* name) {
    return cuModuleGetFunction(kernel, library, name);
}

SIM_API CUresult cuLibraryGetGlobal(CUdeviceptr* pointer, size_t* size, CUlibrary library, const char* name) {
    ENTER();
    return global(pointer, size, library, name);
}

SIM_API CUresult cuKernelGetFunction(CUfunction* function, CUkernel kernel) {
    ENTER();
    if (!function) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    FUNCTION(kernel);
    *function = kernel;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuKernelGetLibrary(CUlibrary* library, CUkernel kernel) {
    ENTER();
    if (!library) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    FUNCTION(kernel);
    *library = kernel->module;
    return CUDA_SUCCESS;
}

// ---- functions ----------------------------------------------------------------------------------------------------
SIM_API CUresult cuFuncGetModule(CUmodule* module, CUfunction function) {
    return cuKernelGetLibrary(module, function);
}

SIM_API CUresult cuFuncGetName(const char** name, CUfunction function) {
    ENTER();
    if (!name) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    FUNCTION(function);
    *name = function->name;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuKernelGetName(const char** name, CUkernel kernel) {
    return cuFuncGetName(name, kernel);
}

SIM_API CUresult cuFuncGetParamInfo(CUfunction function, size_t index, size_t* offset, size_t* size) {
    ENTER();
    if (!offset) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    FUNCTION(function);
    size_t bytes;
    sim_result result = sim_function_param(function, index, offset, &bytes);
    if (!result && size) *size = bytes;
    return front_result(result);
}

SIM_API CUresult cuKernelGetParamInfo(CUkernel kernel, size_t index, size_t* offset, size_t* size) {
    return cuFuncGetParamInfo(kernel, index, offset, size);
}

enum { FUNCTION_ATTRIBUTES = 16, MAX_THREADS = 0, PTX_VERSION = 5, BINARY_VERSION = 6 };

SIM_API CUresult cuFuncGetAttribute(int* value, int attribute, CUfunction function) {
    ENTER();
    if (!value || attribute < 0 || attribute >= FUNCTION_ATTRIBUTES) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    FUNCTION(function);
    *value = attribute == MAX_THREADS ? 1024 : attribute == PTX_VERSION || attribute == BINARY_VERSION ? 90 : 0;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuKernelGetAttribute(int* value, int attribute, CUkernel kernel, CUdevice device) {
    return cuFuncGetAttribute(value, attribute, kernel);
}

SIM_API CUresult cuFuncSetAttribute(CUfunction function, int attribute, int value) {
    ENTER();
    if (attribute < 0 || attribute >= FUNCTION_ATTRIBUTES) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    FUNCTION(function);
    return CUDA_SUCCESS;
}

SIM_API CUresult cuKernelSetAttribute(int attribute, int value, CUkernel kernel, CUdevice device) {
    return cuFuncSetAttribute(kernel, attribute, value);
}

SIM_API CUresult cuFuncSetCacheConfig(CUfunction function, int config) {
    ENTER();
    LOCK();
    FUNCTION(function);
    return CUDA_SUCCESS;
}

// ---- launches -----------------------------------------------------------------------------------------------------
static const void* packed_params(void** extra) {
    const void* packed = NULL;
    for (; extra && *extra != LAUNCH_PARAM_END; extra += 2)
        if (*extra == LAUNCH_PARAM_BUFFER_POINTER) packed = extra[1];
    return packed;
}

static bool valid_grid(const struct sim_grid* grid) {
    bool positive = true;
    for (int i = 0; i < 3; i++) positive = positive && grid->grid[i] && grid->block[i];
    return positive && (uint64_t)grid->block[0] * grid->block[1] * grid->block[2] <= 1024;
}

static CUresult launch(CUfunction function, const struct sim_grid* grid, CUstream stream, void** params, void** extra) {
    if (!valid_grid(grid)) return CUDA_ERROR_INVALID_VALUE;
    const void* packed = packed_params(extra);
    LOCK();
    FUNCTION(function);
    if (function->params[0] && !params && !packed) return CUDA_ERROR_INVALID_VALUE;
    return front_submit(stream, sim_kernel_operation(function, grid, params, packed));
}

SIM_API CUresult cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                                unsigned bz, unsigned shared, CUstream stream, void** params, void** extra) {
    ENTER();
    struct sim_grid grid = {{gx, gy, gz}, {bx, by, bz}};
    return launch(function, &grid, stream, params, extra);
}

static CUresult launch_config(const CUlaunchConfig* config, CUstream stream, CUfunction function, void** params,
                              void** extra) {
    struct sim_grid grid = {{config->gridDimX, config->gridDimY, config->gridDimZ},
                            {config->blockDimX, config->blockDimY, config->blockDimZ}};
    return launch(function, &grid, stream, params, extra);
}

SIM_API CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** params, void** extra) {
    ENTER();
    if (!config) return CUDA_ERROR_INVALID_VALUE;
    return launch_config(config, config->hStream, function, params, extra);
}

SIM_API CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                                           unsigned by, unsigned bz, unsigned shared, CUstream stream, void** params) {
    ENTER();
    struct sim_grid grid = {{gx, gy, gz}, {bx, by, bz}};
    return launch(function, &grid, stream, params, NULL);
}

SIM_API CUresult cuLaunchKernel_ptsz(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                                     unsigned by, unsigned bz, unsigned shared, CUstream stream, void** params,
                                     void** extra) {
    return cuLaunchKernel(function, gx, gy, gz, bx, by, bz, shared, per_thread(stream), params, extra);
}

SIM_API CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig* config, CUfunction function, void** params, void** extra) {
    ENTER();
    if (!config) return CUDA_ERROR_INVALID_VALUE;
    return launch_config(config, per_thread(config->hStream), function, params, extra);
}
