// SPDX-License-Identifier: Apache-2.0
//
// Streams, host functions, and waiting for values in memory.
#include "capture.h"
#include "front.h"

// ---- handles ------------------------------------------------------------------------------------------------------
struct sim_stream* front_stream(hipStream_t handle, hipError_t* result) {
    struct sim_stream* stream = handle;
    *result = hipSuccess;
    if ((uintptr_t)handle <= HIP_STREAM_PER_THREAD) {
        struct sim_context* context;
        *result = front_context(&context);
        if (*result) return NULL;
        bool own = (uintptr_t)handle == HIP_STREAM_PER_THREAD;
        stream = own ? sim_stream_per_thread(context) : sim_stream_legacy(context);
        if (!stream) *result = hipErrorOutOfMemory;
        return stream;
    }
    if (!sim_object_is_locked(handle, SIM_STREAM)) *result = hipErrorContextIsDestroyed;
    if (!*result) *result = front_result(stream->context->error);
    return *result ? NULL : stream;
}

hipError_t front_submit(hipStream_t handle, struct sim_operation* operation) {
    hipError_t result;
    struct sim_stream* stream = front_stream(handle, &result);
    if (stream) return front_result(sim_submit_locked(stream, operation));
    if (operation) operation->drop(operation);
    return result;
}

hipError_t front_submit_and_wait(hipStream_t handle, struct sim_operation* operation) {
    hipError_t result = front_submit(handle, operation);
    struct sim_stream* stream = result ? NULL : front_stream(handle, &result);
    return stream ? front_result(sim_stream_synchronize_locked(stream)) : result;
}

// ---- life ---------------------------------------------------------------------------------------------------------
enum { LEAST_PRIORITY = 1, GREATEST_PRIORITY = -1 };

hipError_t sim_hipDeviceGetStreamPriorityRange(int* least, int* greatest) {
    if (least) *least = LEAST_PRIORITY;
    if (greatest) *greatest = GREATEST_PRIORITY;
    return hipSuccess;
}

hipError_t sim_hipStreamCreateWithPriority(hipStream_t* stream, unsigned int flags, int priority) {
    if (!stream || flags & ~(unsigned)hipStreamNonBlocking) return hipErrorInvalidValue;
    if (priority > LEAST_PRIORITY) priority = LEAST_PRIORITY;
    if (priority < GREATEST_PRIORITY) priority = GREATEST_PRIORITY;
    LOCK();
    CONTEXT(context);
    return front_result(sim_stream_create(context, flags, flags & hipStreamNonBlocking, priority, stream));
}

hipError_t sim_hipStreamCreateWithFlags(hipStream_t* stream, unsigned int flags) {
    return sim_hipStreamCreateWithPriority(stream, flags, 0);
}

hipError_t sim_hipStreamCreate(hipStream_t* stream) {
    return sim_hipStreamCreateWithPriority(stream, hipStreamDefault, 0);
}

hipError_t sim_hipExtStreamCreateWithCUMask(hipStream_t* stream, uint32_t size, const uint32_t* mask) {
    if (!size || !mask) return hipErrorInvalidValue;
    return sim_hipStreamCreateWithPriority(stream, hipStreamDefault, 0);
}

hipError_t sim_hipStreamDestroy(hipStream_t stream) {
    LOCK();
    if (!sim_object_is_locked(stream, SIM_STREAM)) return hipErrorInvalidHandle;
    return front_result(sim_stream_destroy(stream));
}

hipError_t sim_hipStreamSynchronize(hipStream_t handle) {
    LOCK();
    STREAM(stream, handle);
    sim_result result = sim_capture_check_wait_locked(stream);
    if (!result) result = sim_capture_check_implicit_locked(stream);
    if (!result) result = sim_capture_check_unsafe_locked();
    // Waiting for the legacy stream waits for what it would wait for.
    if (!result && stream->role == SIM_STREAM_LEGACY) result = sim_submit_locked(stream, sim_empty_operation());
    return front_result(result ? result : sim_stream_synchronize_locked(stream));
}

hipError_t sim_hipStreamQuery(hipStream_t handle) {
    LOCK();
    STREAM(stream, handle);
    sim_result result = sim_capture_check_wait_locked(stream);
    if (result) return front_result(result);
    return sim_stream_idle_locked(stream) ? hipSuccess : hipErrorNotReady;
}

// ---- properties ---------------------------------------------------------------------------------------------------
hipError_t sim_hipStreamGetFlags(hipStream_t handle, unsigned int* flags) {
    if (!handle || !flags) return hipErrorInvalidValue;
    LOCK();
    STREAM(stream, handle);
    *flags = stream->flags;
    return hipSuccess;
}

hipError_t sim_hipStreamGetPriority(hipStream_t handle, int* priority) {
    if (!priority) return hipErrorInvalidValue;
    LOCK();
    STREAM(stream, handle);
    *priority = stream->priority;
    return hipSuccess;
}

hipError_t sim_hipStreamGetId(hipStream_t handle, unsigned long long* id) {
    if (!id) return hipErrorInvalidValue;
    LOCK();
    STREAM(stream, handle);
    *id = stream->id;
    return hipSuccess;
}

// Minus one: not a stream.
static int device_of(hipStream_t handle) {
    LOCK();
    hipError_t result;
    const struct sim_stream* stream = front_stream(handle, &result);
    return stream ? (int)stream->context->device : -1;
}

SIM_API int hipGetStreamDeviceId(hipStream_t stream) {
    hipError_t begun = front_begin(__func__);
    int device = begun ? -1 : device_of(stream);
    front_end(begun);
    return device;
}

hipError_t sim_hipStreamGetDevice(hipStream_t stream, hipDevice_t* device) {
    if (!device) return hipErrorInvalidValue;
    int found = hipGetStreamDeviceId(stream);
    if (found < 0) return hipErrorContextIsDestroyed;
    *device = found;
    return hipSuccess;
}

// ---- host functions -----------------------------------------------------------------------------------------------
hipError_t sim_hipLaunchHostFunc(hipStream_t stream, hipHostFn_t function, void* argument) {
    if (!function) return hipErrorInvalidValue;
    LOCK();
    return front_submit(stream, sim_host_operation(function, argument));
}

hipError_t sim_hipStreamAddCallback(hipStream_t stream, hipStreamCallback_t callback, void* argument,
                                    unsigned int flags) {
    if (!callback || flags) return hipErrorInvalidValue;
    LOCK();
    return front_submit(stream, sim_callback_operation((sim_status_callback)callback, stream, argument));
}

// ---- values in memory: comparisons under a mask are not simulated ---------------------------------------------------
static hipError_t wait_value(hipStream_t stream, void* pointer, uint64_t value, bool wide, unsigned flags, bool whole) {
    if ((uintptr_t)pointer % (wide ? 8 : 4) || flags > hipStreamWaitValueNor) return hipErrorInvalidValue;
    if (!whole) return hipErrorNotSupported;
    LOCK();
    return front_submit(stream, sim_wait_value_operation((uintptr_t)pointer, value, wide, (enum sim_comparison)flags));
}

hipError_t sim_hipStreamWaitValue32(hipStream_t stream, void* pointer, uint32_t value, unsigned int flags,
                                    uint32_t mask) {
    return wait_value(stream, pointer, value, false, flags, mask == UINT32_MAX);
}

hipError_t sim_hipStreamWaitValue64(hipStream_t stream, void* pointer, uint64_t value, unsigned int flags,
                                    uint64_t mask) {
    return wait_value(stream, pointer, value, true, flags, mask == UINT64_MAX);
}

static hipError_t write_value(hipStream_t stream, void* pointer, uint64_t value, bool wide) {
    if ((uintptr_t)pointer % (wide ? 8 : 4)) return hipErrorInvalidValue;
    LOCK();
    return front_submit(stream, sim_write_value_operation((uintptr_t)pointer, value, wide));
}

hipError_t sim_hipStreamWriteValue32(hipStream_t stream, void* pointer, uint32_t value, unsigned int flags) {
    return write_value(stream, pointer, value, false);
}

hipError_t sim_hipStreamWriteValue64(hipStream_t stream, void* pointer, uint64_t value, unsigned int flags) {
    return write_value(stream, pointer, value, true);
}

// ---- per-thread default stream ------------------------------------------------------------------------------------
hipError_t sim_hipStreamSynchronize_spt(hipStream_t stream) {
    return sim_hipStreamSynchronize(front_per_thread(stream));
}

hipError_t sim_hipStreamQuery_spt(hipStream_t stream) {
    return sim_hipStreamQuery(front_per_thread(stream));
}

hipError_t sim_hipLaunchHostFunc_spt(hipStream_t stream, hipHostFn_t function, void* argument) {
    return sim_hipLaunchHostFunc(front_per_thread(stream), function, argument);
}
