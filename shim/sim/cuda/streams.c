// SPDX-License-Identifier: Apache-2.0
#include <signal.h>

#include "capture.h"
#include "front.h"

// ---- handles ------------------------------------------------------------------------------------------------------
static struct sim_stream* default_stream(CUstream handle, CUresult* result) {
    struct sim_context* context;
    *result = front_result(sim_context_usable(&context));
    if (*result) return NULL;
    bool own = handle == SIM_STREAM_PER_THREAD_HANDLE;
    struct sim_stream* stream = own ? sim_stream_per_thread(context) : sim_stream_legacy(context);
    if (!stream) *result = CUDA_ERROR_OUT_OF_MEMORY;
    return stream;
}

struct sim_stream* front_stream(CUstream handle, CUresult* result) {
    if ((uintptr_t)handle <= 2) return default_stream(handle, result);
    *result = sim_object_is_locked(handle, SIM_STREAM) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
    return *result ? NULL : handle;
}

#define STREAM(name, handle)                                 \
    CUresult found_;                                         \
    struct sim_stream* name = front_stream(handle, &found_); \
    if (!name) return found_

void front_drop(struct sim_operation* operation) {
    if (operation) operation->drop(operation);
}

// With sim_lock. Takes the operation in any case.
CUresult front_submit(CUstream handle, struct sim_operation* operation) {
    CUresult result;
    struct sim_stream* stream = front_stream(handle, &result);
    if (stream) return front_result(sim_submit_locked(stream, operation));
    front_drop(operation);
    return result;
}

CUresult front_submit_and_wait(CUstream handle, struct sim_operation* operation) {
    CUresult result;
    struct sim_stream* stream = front_stream(handle, &result);
    if (!stream) {
        front_drop(operation);
        return result;
    }
    sim_result submitted = sim_submit_locked(stream, operation);
    return front_result(submitted ? submitted : sim_stream_synchronize_locked(stream));
}

// ---- life ---------------------------------------------------------------------------------------------------------
enum { STREAM_NON_BLOCKING = 1, LEAST_PRIORITY = 0, GREATEST_PRIORITY = -5 };

static int clamp(int priority) {
    if (priority > LEAST_PRIORITY) return LEAST_PRIORITY;
    return priority < GREATEST_PRIORITY ? GREATEST_PRIORITY : priority;
}

SIM_API CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned flags, int priority) {
    ENTER();
    if (!stream || flags & ~(unsigned)STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    CONTEXT(context);
    return front_result(sim_stream_create(context, flags, flags & STREAM_NON_BLOCKING, clamp(priority), stream));
}

SIM_API CUresult cuStreamCreate(CUstream* stream, unsigned flags) {
    return cuStreamCreateWithPriority(stream, flags, 0);
}

SIM_API CUresult cuStreamDestroy_v2(CUstream stream) {
    ENTER();
    LOCK();
    if (!sim_object_is_locked(stream, SIM_STREAM)) return CUDA_ERROR_INVALID_HANDLE;
    return front_result(sim_stream_destroy(stream));
}

SIM_API CUresult cuStreamDestroy(CUstream stream) {
    return cuStreamDestroy_v2(stream);
}

SIM_API CUresult cuStreamSynchronize(CUstream handle) {
    // r580's lock lets this one through, and what it would look at is gone: seen on an H200, a fault inside the call.
    if (sim_process_checkpointed()) raise(SIGSEGV);
    ENTER();
    LOCK();
    STREAM(stream, handle);
    sim_result result = sim_capture_check_wait_locked(stream);
    if (!result) result = sim_capture_check_implicit_locked(stream);
    if (!result) result = sim_capture_check_unsafe_locked();
    if (!result && stream->role == SIM_STREAM_LEGACY) {
        // Waiting for the legacy stream waits for what it would wait for.
        result = sim_submit_locked(stream, sim_empty_operation());
    }
    return front_result(result ? result : sim_stream_synchronize_locked(stream));
}

SIM_API CUresult cuStreamQuery(CUstream handle) {
    ENTER();
    LOCK();
    STREAM(stream, handle);
    sim_result result = sim_capture_check_wait_locked(stream);
    if (!result) result = sim_capture_check_implicit_locked(stream);
    if (!result) result = sim_capture_check_unsafe_locked();
    if (result) return front_result(result);
    if (stream->context->error) return front_result(stream->context->error);
    return sim_stream_idle_locked(stream) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

// ---- properties ---------------------------------------------------------------------------------------------------
SIM_API CUresult cuStreamGetPriority(CUstream handle, int* priority) {
    ENTER();
    LOCK();
    STREAM(stream, handle);
    if (!priority) return CUDA_ERROR_INVALID_VALUE;
    *priority = stream->priority;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuStreamGetFlags(CUstream handle, unsigned* flags) {
    ENTER();
    LOCK();
    STREAM(stream, handle);
    if (stream->capture) return front_result(sim_capture_check_wait_locked(stream));  // breaks it: seen on an H100
    if (!flags) return CUDA_ERROR_INVALID_VALUE;
    *flags = stream->flags;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuStreamGetId(CUstream handle, unsigned long long* id) {
    ENTER();
    LOCK();
    STREAM(stream, handle);
    if (stream->capture) return front_result(sim_capture_check_wait_locked(stream));  // breaks it: seen on an H100
    if (!id) return CUDA_ERROR_INVALID_VALUE;
    *id = stream->id;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuStreamGetCtx(CUstream handle, CUcontext* context) {
    ENTER();
    LOCK();
    STREAM(stream, handle);
    if (!context) return CUDA_ERROR_INVALID_VALUE;
    *context = stream->context;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuStreamGetCtx_v2(CUstream handle, CUcontext* context, void** green) {
    if (green) *green = NULL;
    return cuStreamGetCtx(handle, context);
}

SIM_API CUresult cuStreamGetDevice(CUstream handle, CUdevice* device) {
    ENTER();
    LOCK();
    STREAM(stream, handle);
    if (stream->capture) return front_result(sim_capture_check_wait_locked(stream));  // breaks it: seen on an H100
    if (!device) return CUDA_ERROR_INVALID_VALUE;
    *device = (CUdevice)stream->context->device;
    return CUDA_SUCCESS;
}

// ---- host functions -----------------------------------------------------------------------------------------------
SIM_API CUresult cuLaunchHostFunc(CUstream stream, void (*function)(void*), void* argument) {
    ENTER();
    if (!function) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    return front_submit(stream, sim_host_operation(function, argument));
}

typedef void (*CUstreamCallback)(CUstream stream, CUresult status, void* argument);

SIM_API CUresult cuStreamAddCallback(CUstream stream, CUstreamCallback callback, void* argument, unsigned flags) {
    ENTER();
    if (!callback || flags) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    return front_submit(stream, sim_callback_operation((sim_status_callback)callback, stream, argument));
}

// ---- values in memory ---------------------------------------------------------------------------------------------
enum { WAIT_COMPARISON = 3, WAIT_FLUSH = 1 << 30, WRITE_NO_BARRIER = 1 };

static CUresult wait_value(CUstream stream, CUdeviceptr address, uint64_t value, bool wide, unsigned flags) {
    if (address % (wide ? 8 : 4) || flags & ~(unsigned)(WAIT_COMPARISON | WAIT_FLUSH)) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    return front_submit(stream, sim_wait_value_operation(address, value, wide, flags & WAIT_COMPARISON));
}

static CUresult write_value(CUstream stream, CUdeviceptr address, uint64_t value, bool wide, unsigned flags) {
    if (address % (wide ? 8 : 4) || flags & ~(unsigned)WRITE_NO_BARRIER) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    return front_submit(stream, sim_write_value_operation(address, value, wide));
}

SIM_API CUresult cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr address, uint32_t value, unsigned flags) {
    ENTER();
    return wait_value(stream, address, value, false, flags);
}

SIM_API CUresult cuStreamWaitValue64_v2(CUstream stream, CUdeviceptr address, uint64_t value, unsigned flags) {
    ENTER();
    return wait_value(stream, address, value, true, flags);
}

SIM_API CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr address, uint32_t value, unsigned flags) {
    ENTER();
    return write_value(stream, address, value, false, flags);
}

SIM_API CUresult cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr address, uint64_t value, unsigned flags) {
    ENTER();
    return write_value(stream, address, value, true, flags);
}

// ---- events -------------------------------------------------------------------------------------------------------
enum { EVENT_FLAGS = 7, WAIT_EXTERNAL = 1 };

SIM_API CUresult cuEventCreate(CUevent* event, unsigned flags) {
    ENTER();
    bool untimed = flags & EVENT_DISABLE_TIMING;
    if (!event || flags & ~(unsigned)EVENT_FLAGS || (flags & EVENT_INTERPROCESS && !untimed))
        return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    CONTEXT(context);
    return front_result(sim_event_create(context, flags, event));
}

SIM_API CUresult cuEventDestroy_v2(CUevent event) {
    ENTER();
    LOCK();
    EVENT(event);
    sim_event_destroy(event);
    return CUDA_SUCCESS;
}

SIM_API CUresult cuEventRecordWithFlags(CUevent event, CUstream handle, unsigned flags) {
    ENTER();
    LOCK();
    EVENT(event);
    STREAM(stream, handle);
    return front_result(sim_event_record(event, stream));
}

SIM_API CUresult cuEventRecord(CUevent event, CUstream stream) {
    return cuEventRecordWithFlags(event, stream, 0);
}

SIM_API CUresult cuEventQuery(CUevent event) {
    ENTER();
    LOCK();
    EVENT(event);
    if (event->capture) return front_result(sim_capture_check_event_locked(event));
    UNSAFE_IN_CAPTURE();
    if (event->context->error) return front_result(event->context->error);
    return sim_event_done(event) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

SIM_API CUresult cuEventSynchronize(CUevent event) {
    ENTER();
    LOCK();
    EVENT(event);
    if (event->capture) return front_result(sim_capture_check_event_locked(event));
    UNSAFE_IN_CAPTURE();
    return front_result(sim_event_synchronize(event));
}

SIM_API CUresult cuEventElapsedTime_v2(float* milliseconds, CUevent start, CUevent end) {
    ENTER();
    LOCK();
    EVENT(start);
    EVENT(end);
    if (!milliseconds) return CUDA_ERROR_INVALID_HANDLE;
    if (!start->recorded || !end->recorded || (start->flags | end->flags) & EVENT_DISABLE_TIMING)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!sim_event_done(start) || !sim_event_done(end)) return CUDA_ERROR_NOT_READY;
    *milliseconds = (float)((double)(int64_t)(end->time_ns - start->time_ns) / 1e6);
    return CUDA_SUCCESS;
}

SIM_API CUresult cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
    return cuEventElapsedTime_v2(milliseconds, start, end);
}

SIM_API CUresult cuStreamWaitEvent(CUstream handle, CUevent event, unsigned flags) {
    ENTER();
    if (flags & ~(unsigned)WAIT_EXTERNAL) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    EVENT(event);
    STREAM(stream, handle);
    return front_result(sim_event_wait(stream, event));
}

// ---- per-thread default stream ------------------------------------------------------------------------------------
#define PTSZ(name, params, ...)           \
    SIM_API CUresult name##_ptsz params { \
        return name(__VA_ARGS__);         \
    }

PTSZ(cuStreamSynchronize, (CUstream s), per_thread(s))
PTSZ(cuStreamQuery, (CUstream s), per_thread(s))
PTSZ(cuStreamGetPriority, (CUstream s, int* priority), per_thread(s), priority)
PTSZ(cuStreamGetFlags, (CUstream s, unsigned* flags), per_thread(s), flags)
PTSZ(cuStreamGetId, (CUstream s, unsigned long long* id), per_thread(s), id)
PTSZ(cuStreamGetCtx, (CUstream s, CUcontext* context), per_thread(s), context)
PTSZ(cuStreamGetCtx_v2, (CUstream s, CUcontext* context, void** green), per_thread(s), context, green)
PTSZ(cuStreamGetDevice, (CUstream s, CUdevice* device), per_thread(s), device)
PTSZ(cuStreamWaitEvent, (CUstream s, CUevent event, unsigned flags), per_thread(s), event, flags)
PTSZ(cuLaunchHostFunc, (CUstream s, void (*function)(void*), void* argument), per_thread(s), function, argument)
PTSZ(cuStreamAddCallback, (CUstream s, CUstreamCallback callback, void* argument, unsigned flags), per_thread(s),
     callback, argument, flags)
PTSZ(cuEventRecord, (CUevent event, CUstream s), event, per_thread(s))
PTSZ(cuEventRecordWithFlags, (CUevent event, CUstream s, unsigned flags), event, per_thread(s), flags)
PTSZ(cuStreamWaitValue32_v2, (CUstream s, CUdeviceptr a, uint32_t v, unsigned f), per_thread(s), a, v, f)
PTSZ(cuStreamWaitValue64_v2, (CUstream s, CUdeviceptr a, uint64_t v, unsigned f), per_thread(s), a, v, f)
PTSZ(cuStreamWriteValue32_v2, (CUstream s, CUdeviceptr a, uint32_t v, unsigned f), per_thread(s), a, v, f)
PTSZ(cuStreamWriteValue64_v2, (CUstream s, CUdeviceptr a, uint64_t v, unsigned f), per_thread(s), a, v, f)
