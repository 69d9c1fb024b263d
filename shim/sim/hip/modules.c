// SPDX-License-Identifier: Apache-2.0
//
// Modules, functions, launches by function handle.
#include "module.h"

#include "capture.h"
#include "front.h"

#define MODULE(module) \
    if (!sim_object_is_locked(module, SIM_MODULE)) return hipErrorInvalidHandle
#define FUNCTION(function) \
    if (!sim_object_is_locked(function, SIM_FUNCTION)) return hipErrorInvalidHandle

hipError_t sim_hipModuleLoadData(hipModule_t* module, const void* image) {
    if (!module || !image) return hipErrorInvalidValue;
    LOCK();
    CONTEXT(context);
    return front_result(sim_module_load(context, image, module));
}

hipError_t sim_hipModuleLoadDataEx(hipModule_t* module, const void* image, unsigned int count, hipJitOption* options,
                                   void** values) {
    return sim_hipModuleLoadData(module, image);
}

hipError_t sim_hipModuleLoadFatBinary(hipModule_t* module, const void* image) {
    return sim_hipModuleLoadData(module, image);
}

hipError_t sim_hipModuleLoad(hipModule_t* module, const char* path) {
    if (!module || !path) return hipErrorInvalidValue;
    LOCK();
    CONTEXT(context);
    return front_result(sim_module_load_file(context, path, module));
}

hipError_t sim_hipModuleUnload(hipModule_t module) {
    LOCK();
    MODULE(module);
    sim_context_synchronize(module->context);
    sim_module_unload(module);
    return hipSuccess;
}

hipError_t sim_hipModuleGetFunction(hipFunction_t* function, hipModule_t module, const char* name) {
    if (!function || !name || !*name) return hipErrorInvalidValue;
    LOCK();
    MODULE(module);
    return front_result(sim_module_function(module, name, function));
}

hipError_t sim_hipModuleGetGlobal(hipDeviceptr_t* pointer, size_t* size, hipModule_t module, const char* name) {
    if (!name) return hipErrorInvalidValue;
    LOCK();
    MODULE(module);
    struct sim_allocation* allocation;
    sim_result result = sim_module_global(module, module->context, name, &allocation);
    if (result) return front_result(result);
    if (pointer) *pointer = (void*)allocation->range.start;
    if (size) *size = allocation->range.size;
    return hipSuccess;
}

// ---- functions ----------------------------------------------------------------------------------------------------
enum { MAX_THREADS = 1024 };

hipError_t sim_hipFuncGetAttribute(int* value, hipFunction_attribute attribute, hipFunction_t function) {
    if (!value || attribute >= HIP_FUNC_ATTRIBUTE_MAX) return hipErrorInvalidValue;
    LOCK();
    FUNCTION(function);
    *value = attribute == HIP_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? MAX_THREADS : 0;
    return hipSuccess;
}

hipError_t sim_hipKernelGetParamInfo(hipFunction_t kernel, size_t index, size_t* offset, size_t* size) {
    if (!offset) return hipErrorInvalidValue;
    LOCK();
    FUNCTION(kernel);
    size_t bytes;
    sim_result result = sim_function_param(kernel, index, offset, &bytes);
    if (!result && size) *size = bytes;
    return front_result(result);
}

static const char* name_of(hipFunction_t function) {
    LOCK();
    return sim_object_is_locked(function, SIM_FUNCTION) ? function->name : "";
}

SIM_API const char* hipKernelNameRef(hipFunction_t function) {
    return name_of(function);
}

// ---- launches -----------------------------------------------------------------------------------------------------
static const void* packed_params(void** extra) {
    const void* packed = NULL;
    for (; extra && *extra != (void*)HIP_LAUNCH_PARAM_END; extra += 2)
        if (*extra == (void*)HIP_LAUNCH_PARAM_BUFFER_POINTER) packed = extra[1];
    return packed;
}

static bool valid_grid(const struct sim_grid* grid) {
    bool positive = true;
    for (int i = 0; i < 3; i++) positive = positive && grid->grid[i] && grid->block[i];
    return positive && (uint64_t)grid->block[0] * grid->block[1] * grid->block[2] <= MAX_THREADS;
}

hipError_t sim_hipModuleLaunchKernel(hipFunction_t function, unsigned int gx, unsigned int gy, unsigned int gz,
                                     unsigned int bx, unsigned int by, unsigned int bz, unsigned int shared,
                                     hipStream_t stream, void** params, void** extra) {
    struct sim_grid grid = {{gx, gy, gz}, {bx, by, bz}};
    if (!valid_grid(&grid)) return hipErrorInvalidConfiguration;
    const void* packed = packed_params(extra);
    LOCK();
    FUNCTION(function);
    if (function->params[0] && !params && !packed) return hipErrorInvalidValue;
    return front_submit(stream, sim_kernel_operation(function, &grid, params, packed));
}

hipError_t sim_hipModuleLaunchCooperativeKernel(hipFunction_t function, unsigned int gx, unsigned int gy,
                                                unsigned int gz, unsigned int bx, unsigned int by, unsigned int bz,
                                                unsigned int shared, hipStream_t stream, void** params) {
    return sim_hipModuleLaunchKernel(function, gx, gy, gz, bx, by, bz, shared, stream, params, NULL);
}

hipError_t sim_hipDrvLaunchKernelEx(const HIP_LAUNCH_CONFIG* c, hipFunction_t function, void** params, void** extra) {
    if (!c) return hipErrorInvalidValue;
    return sim_hipModuleLaunchKernel(function, c->gridDimX, c->gridDimY, c->gridDimZ, c->blockDimX, c->blockDimY,
                                     c->blockDimZ, c->sharedMemBytes, c->hStream, params, extra);
}

static hipError_t record(hipEvent_t event, hipStream_t stream) {
    return event ? sim_hipEventRecord(event, stream) : hipSuccess;
}

// The shape is given in threads, not in blocks.
hipError_t sim_hipExtModuleLaunchKernel(hipFunction_t function, uint32_t wx, uint32_t wy, uint32_t wz, uint32_t bx,
                                        uint32_t by, uint32_t bz, size_t shared, hipStream_t stream, void** params,
                                        void** extra, hipEvent_t start, hipEvent_t stop, uint32_t flags) {
    if (!bx || !by || !bz || wx % bx || wy % by || wz % bz) return hipErrorInvalidConfiguration;
    hipError_t result = record(start, stream);
    if (!result)
        result = hipModuleLaunchKernel(function, wx / bx, wy / by, wz / bz, bx, by, bz, (unsigned)shared, stream,
                                       params, extra);
    return result ? result : record(stop, stream);
}
