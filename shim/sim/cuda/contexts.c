// SPDX-License-Identifier: Apache-2.0
#include "capture.h"
#include "front.h"

enum { CONTEXT_FLAGS = 0xff };

static bool is_context(CUcontext context) {
    return sim_object_is_locked(context, SIM_CONTEXT);
}

// ---- primary contexts ---------------------------------------------------------------------------------------------
SIM_API CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
    ENTER();
    if (!context) return CUDA_ERROR_INVALID_VALUE;
    DEVICE(device);
    LOCK();
    return front_result(sim_primary_retain((unsigned)device, context));
}

SIM_API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    ENTER();
    DEVICE(device);
    LOCK();
    return front_result(sim_primary_release((unsigned)device));
}

SIM_API CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
    ENTER();
    DEVICE(device);
    LOCK();
    return front_result(sim_primary_reset((unsigned)device));
}

SIM_API CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags) {
    ENTER();
    DEVICE(device);
    if (flags & ~(unsigned)CONTEXT_FLAGS) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    struct sim_context* primary = sim_primary_of((unsigned)device);
    if (!primary) return CUDA_ERROR_OUT_OF_MEMORY;
    primary->flags = flags;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active) {
    ENTER();
    DEVICE(device);
    if (!flags || !active) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    const struct sim_context* primary = sim_primary_of((unsigned)device);
    *flags = primary ? primary->flags : 0;
    *active = primary && primary->alive;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
    return cuDevicePrimaryCtxRelease_v2(device);
}

SIM_API CUresult cuDevicePrimaryCtxReset(CUdevice device) {
    return cuDevicePrimaryCtxReset_v2(device);
}

SIM_API CUresult cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned flags) {
    return cuDevicePrimaryCtxSetFlags_v2(device, flags);
}

// ---- contexts of the program --------------------------------------------------------------------------------------
SIM_API CUresult cuCtxCreate_v2(CUcontext* context, unsigned flags, CUdevice device) {
    ENTER();
    if (!context || flags & ~(unsigned)CONTEXT_FLAGS) return CUDA_ERROR_INVALID_VALUE;
    DEVICE(device);
    LOCK();
    sim_result result = sim_context_create((unsigned)device, flags, context);
    if (!result) result = sim_context_push(*context);
    return front_result(result);
}

SIM_API CUresult cuCtxCreate(CUcontext* context, unsigned flags, CUdevice device) {
    return cuCtxCreate_v2(context, flags, device);
}

SIM_API CUresult cuCtxCreate_v3(CUcontext* context, void* affinity, int count, unsigned flags, CUdevice device) {
    return affinity || count ? CUDA_ERROR_NOT_SUPPORTED : cuCtxCreate_v2(context, flags, device);
}

SIM_API CUresult cuCtxCreate_v4(CUcontext* context, void* params, unsigned flags, CUdevice device) {
    return params ? CUDA_ERROR_NOT_SUPPORTED : cuCtxCreate_v2(context, flags, device);
}

SIM_API CUresult cuCtxDestroy_v2(CUcontext context) {
    ENTER();
    LOCK();
    if (!is_context(context)) return context ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_INVALID_VALUE;
    return front_result(sim_context_destroy(context));
}

SIM_API CUresult cuCtxDestroy(CUcontext context) {
    return cuCtxDestroy_v2(context);
}

SIM_API CUresult cuCtxAttach(CUcontext* attached, unsigned flags) {
    ENTER();
    if (!attached || flags) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    CONTEXT(context);
    context->attached++;
    *attached = context;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuCtxDetach(CUcontext context) {
    ENTER();
    LOCK();
    if (!is_context(context)) return CUDA_ERROR_INVALID_CONTEXT;
    if (!context->attached) return front_result(sim_context_destroy(context));
    context->attached--;
    return CUDA_SUCCESS;
}

// ---- current ------------------------------------------------------------------------------------------------------
SIM_API CUresult cuCtxGetCurrent(CUcontext* context) {
    ENTER();
    if (!context) return CUDA_ERROR_INVALID_VALUE;
    *context = sim_context_current();
    return CUDA_SUCCESS;
}

// A destroyed context may become current; the calls that need it fail.
static CUresult check_known(CUcontext context) {
    LOCK();
    return is_context(context) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

SIM_API CUresult cuCtxSetCurrent(CUcontext context) {
    ENTER();
    CUresult result = context ? check_known(context) : CUDA_SUCCESS;
    if (!result) sim_context_set_current(context);
    return result;
}

SIM_API CUresult cuCtxPushCurrent_v2(CUcontext context) {
    ENTER();
    CUresult result = context ? check_known(context) : CUDA_ERROR_INVALID_VALUE;
    return result ? result : front_result(sim_context_push(context));
}

SIM_API CUresult cuCtxPopCurrent_v2(CUcontext* context) {
    ENTER();
    struct sim_context* popped;
    sim_result result = sim_context_pop(&popped);
    if (!result && context) *context = popped;
    return front_result(result);
}

SIM_API CUresult cuCtxGetDevice_v2(CUdevice* device, CUcontext context) {
    ENTER();
    if (!device) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    struct sim_context* asked = context ? context : sim_context_current();
    if (!asked || !is_context(asked)) return CUDA_ERROR_INVALID_CONTEXT;
    *device = (CUdevice)asked->device;  // a destroyed one still knows it
    return CUDA_SUCCESS;
}

SIM_API CUresult cuCtxGetDevice(CUdevice* device) {
    return cuCtxGetDevice_v2(device, NULL);
}

SIM_API CUresult cuCtxSynchronize_v2(CUcontext context) {
    ENTER();
    LOCK();
    struct sim_context* asked = context ? context : sim_context_current();
    if (!asked || !is_context(asked)) return CUDA_ERROR_INVALID_CONTEXT;
    if (!asked->alive) return 709;
    sim_result captures = sim_capture_check_context_locked(asked);
    return front_result(captures ? captures : sim_context_synchronize(asked));
}

SIM_API CUresult cuCtxSynchronize(void) {
    return cuCtxSynchronize_v2(NULL);
}

// ---- properties ---------------------------------------------------------------------------------------------------
SIM_API CUresult cuCtxGetFlags(unsigned* flags) {
    ENTER();
    if (!flags) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    CONTEXT(context);
    *flags = context->flags;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuCtxSetFlags(unsigned flags) {
    ENTER();
    LOCK();
    CONTEXT(context);
    context->flags = flags;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuCtxGetId(CUcontext context, unsigned long long* id) {
    ENTER();
    if (!id) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    struct sim_context* asked = context ? context : sim_context_current();
    if (!asked || !is_context(asked)) return CUDA_ERROR_INVALID_CONTEXT;
    *id = asked->id;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuCtxGetApiVersion(CUcontext context, unsigned* version) {
    ENTER();
    if (!version) return CUDA_ERROR_INVALID_VALUE;
    *version = 3020;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
    ENTER();
    LOCK();
    CONTEXT(context);
    (void)context;
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuCtxGetCacheConfig(int* config) {
    ENTER();
    if (!config) return CUDA_ERROR_INVALID_VALUE;
    *config = 0;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuCtxSetCacheConfig(int config) {
    ENTER();
    return CUDA_SUCCESS;
}

enum { LIMITS = 8 };

static size_t limits[LIMITS] = {1024, 7340032, 8388608, 2, 2048, 128, 0, 0};

SIM_API CUresult cuCtxGetLimit(size_t* value, int limit) {
    ENTER();
    if (!value || limit < 0 || limit >= LIMITS) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    CONTEXT(context);
    (void)context;
    *value = limits[limit];
    return CUDA_SUCCESS;
}

SIM_API CUresult cuCtxSetLimit(int limit, size_t value) {
    ENTER();
    if (limit < 0 || limit >= LIMITS) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    CONTEXT(context);
    (void)context;
    limits[limit] = value;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuCtxResetPersistingL2Cache(void) {
    ENTER();
    return CUDA_SUCCESS;
}
