// SPDX-License-Identifier: Apache-2.0
#include "capture.h"
#include "front.h"

#define EVENT(event) \
    if (!sim_object_is_locked(event, SIM_EVENT)) return hipErrorInvalidHandle

#define EVENT_FLAGS 0xe0000007u  // blocking, untimed, interprocess; which fences are made

hipError_t sim_hipEventCreateWithFlags(hipEvent_t* event, unsigned int flags) {
    bool untimed = flags & hipEventDisableTiming;
    if (!event || flags & ~EVENT_FLAGS || (flags & hipEventInterprocess && !untimed)) return hipErrorInvalidValue;
    LOCK();
    CONTEXT(context);
    return front_result(sim_event_create(context, flags, event));
}

hipError_t sim_hipEventCreate(hipEvent_t* event) {
    return sim_hipEventCreateWithFlags(event, hipEventDefault);
}

hipError_t sim_hipEventDestroy(hipEvent_t event) {
    LOCK();
    EVENT(event);
    sim_event_destroy(event);
    return hipSuccess;
}

hipError_t sim_hipEventRecordWithFlags(hipEvent_t event, hipStream_t handle, unsigned int flags) {
    LOCK();
    EVENT(event);
    STREAM(stream, handle);
    return front_result(sim_event_record(event, stream));
}

hipError_t sim_hipEventRecord(hipEvent_t event, hipStream_t stream) {
    return sim_hipEventRecordWithFlags(event, stream, 0);
}

hipError_t sim_hipEventRecord_spt(hipEvent_t event, hipStream_t stream) {
    return sim_hipEventRecordWithFlags(event, front_per_thread(stream), 0);
}

hipError_t sim_hipEventQuery(hipEvent_t event) {
    LOCK();
    EVENT(event);
    if (event->capture) return front_result(sim_capture_check_event_locked(event));
    if (event->context->error) return front_result(event->context->error);
    return sim_event_done(event) ? hipSuccess : hipErrorNotReady;
}

hipError_t sim_hipEventSynchronize(hipEvent_t event) {
    LOCK();
    EVENT(event);
    if (event->capture) return front_result(sim_capture_check_event_locked(event));
    UNSAFE_IN_CAPTURE();
    return front_result(sim_event_synchronize(event));
}

hipError_t sim_hipEventElapsedTime(float* milliseconds, hipEvent_t start, hipEvent_t end) {
    if (!milliseconds) return hipErrorInvalidValue;
    LOCK();
    EVENT(start);
    EVENT(end);
    bool untimed = (start->flags | end->flags) & hipEventDisableTiming;
    if (!start->recorded || !end->recorded || untimed) return hipErrorInvalidHandle;
    if (!sim_event_done(start) || !sim_event_done(end)) return hipErrorNotReady;
    *milliseconds = (float)((double)(int64_t)(end->time_ns - start->time_ns) / 1e6);
    return hipSuccess;
}

hipError_t sim_hipStreamWaitEvent(hipStream_t handle, hipEvent_t event, unsigned int flags) {
    if (flags > 1) return hipErrorInvalidValue;
    LOCK();
    EVENT(event);
    STREAM(stream, handle);
    return front_result(sim_event_wait(stream, event));
}

hipError_t sim_hipStreamWaitEvent_spt(hipStream_t stream, hipEvent_t event, unsigned int flags) {
    return sim_hipStreamWaitEvent(front_per_thread(stream), event, flags);
}
