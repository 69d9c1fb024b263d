// SPDX-License-Identifier: Apache-2.0
//
// Streams, events, host functions.
#include "front.h"

static const uint32_t STREAM_PRIORITIES = 8;

struct sim_stream* front_stream(aclrtStream handle, aclError* result) {
    struct sim_context* context;
    *result = ACL_ERROR_RT_PARAM_INVALID;
    if (handle) return sim_object_is_locked(handle, SIM_STREAM) ? handle : NULL;
    sim_result usable = sim_context_usable(&context);
    *result = usable ? front_result(usable) : ACL_ERROR_RT_MEMORY_ALLOCATION;
    return usable ? NULL : sim_stream_legacy(context);
}

aclError front_submit(aclrtStream handle, struct sim_operation* operation) {
    aclError result;
    struct sim_stream* stream = front_stream(handle, &result);
    if (stream) return front_result(sim_submit_locked(stream, operation));
    if (operation) operation->drop(operation);
    return result;
}

// ---- streams ------------------------------------------------------------------------------------------------------
static aclError create_stream(aclrtStream* out, uint32_t priority, uint32_t flags) {
    REQUIRE(out && priority < STREAM_PRIORITIES);
    LOCK();
    CONTEXT(context);
    struct sim_stream* made;
    sim_result result = sim_stream_create(context, flags, true, (int)priority, &made);
    if (!result) *out = made;
    return front_result(result);
}

SIM_API aclError aclrtCreateStream(aclrtStream* out) {
    ENTER();
    return create_stream(out, 0, 0);
}

SIM_API aclError aclrtCreateStreamWithConfig(aclrtStream* out, uint32_t priority, uint32_t flags) {
    ENTER();
    return create_stream(out, priority, flags);
}

static aclError destroy_stream(aclrtStream handle, bool wait) {
    LOCK();
    REQUIRE(sim_object_is_locked(handle, SIM_STREAM));
    if (wait) sim_stream_synchronize_locked(handle);
    // The wait gave the lock up: another thread may have destroyed it.
    return sim_object_is_locked(handle, SIM_STREAM) ? front_result(sim_stream_destroy(handle)) : ACL_SUCCESS;
}

SIM_API aclError aclrtDestroyStream(aclrtStream handle) {
    ENTER();
    return destroy_stream(handle, true);
}

SIM_API aclError aclrtDestroyStreamForce(aclrtStream handle) {
    ENTER();
    return destroy_stream(handle, false);
}

SIM_API aclError aclrtSynchronizeStream(aclrtStream handle) {
    LOOK();
    LOCK();
    aclError result;
    struct sim_stream* stream = front_stream(handle, &result);
    return stream ? front_result(sim_stream_synchronize_locked(stream)) : result;
}

// With sim_lock. False: `milliseconds` passed first.
static bool idle_within(const struct sim_stream* stream, int32_t milliseconds) {
    uint64_t target = stream->submitted;
    uint64_t deadline = milliseconds < 0 ? SIM_FOREVER : sim_now_ns() + (uint64_t)milliseconds * 1000000;
    while (stream->completed < target)
        if (!sim_wait_progress_locked(deadline) && stream->completed < target) return false;
    return true;
}

SIM_API aclError aclrtSynchronizeStreamWithTimeout(aclrtStream handle, int32_t milliseconds) {
    LOOK();
    REQUIRE(milliseconds >= -1);
    LOCK();
    aclError result;
    const struct sim_stream* stream = front_stream(handle, &result);
    if (!stream) return result;
    return idle_within(stream, milliseconds) ? front_result(stream->context->error) : ACL_ERROR_RT_STREAM_SYNC_TIMEOUT;
}

SIM_API aclError aclrtStreamQuery(aclrtStream handle, aclrtStreamStatus* status) {
    LOOK();
    REQUIRE(status);
    LOCK();
    aclError result;
    const struct sim_stream* stream = front_stream(handle, &result);
    if (!stream) return result;
    *status = sim_stream_idle_locked(stream) ? ACL_STREAM_STATUS_COMPLETE : ACL_STREAM_STATUS_NOT_READY;
    return ACL_SUCCESS;
}

SIM_API aclError aclrtLaunchHostFunc(aclrtStream handle, aclrtHostFunc function, void* argument) {
    ENTER();
    REQUIRE(function);
    LOCK();
    return front_submit(handle, sim_host_operation(function, argument));
}

// ---- events -------------------------------------------------------------------------------------------------------
#define EVENT(name, handle)                           \
    REQUIRE(sim_object_is_locked(handle, SIM_EVENT)); \
    struct sim_event* name = handle

static aclError create_event(aclrtEvent* out, uint32_t flags) {
    REQUIRE(out);
    LOCK();
    CONTEXT(context);
    struct sim_event* made;
    sim_result result = sim_event_create(context, flags, &made);
    if (!result) *out = made;
    return front_result(result);
}

SIM_API aclError aclrtCreateEvent(aclrtEvent* out) {
    ENTER();
    return create_event(out, 0);
}

SIM_API aclError aclrtCreateEventWithFlag(aclrtEvent* out, uint32_t flags) {
    ENTER();
    return create_event(out, flags);
}

SIM_API aclError aclrtCreateEventExWithFlag(aclrtEvent* out, uint32_t flags) {
    ENTER();
    return create_event(out, flags);
}

SIM_API aclError aclrtDestroyEvent(aclrtEvent handle) {
    ENTER();
    LOCK();
    EVENT(event, handle);
    sim_event_destroy(event);
    return ACL_SUCCESS;
}

SIM_API aclError aclrtRecordEvent(aclrtEvent handle, aclrtStream stream_handle) {
    ENTER();
    LOCK();
    EVENT(event, handle);
    aclError result;
    struct sim_stream* stream = front_stream(stream_handle, &result);
    return stream ? front_result(sim_event_record(event, stream)) : result;
}

SIM_API aclError aclrtStreamWaitEvent(aclrtStream stream_handle, aclrtEvent handle) {
    ENTER();
    LOCK();
    EVENT(event, handle);
    aclError result;
    struct sim_stream* stream = front_stream(stream_handle, &result);
    return stream ? front_result(sim_event_wait(stream, event)) : result;
}

SIM_API aclError aclrtQueryEventStatus(aclrtEvent handle, aclrtEventRecordedStatus* status) {
    LOOK();
    REQUIRE(status);
    LOCK();
    EVENT(event, handle);
    *status = sim_event_done(event) ? ACL_EVENT_RECORDED_STATUS_COMPLETE : ACL_EVENT_RECORDED_STATUS_NOT_READY;
    return ACL_SUCCESS;
}

SIM_API aclError aclrtSynchronizeEvent(aclrtEvent handle) {
    LOOK();
    LOCK();
    EVENT(event, handle);
    return front_result(sim_event_synchronize(event));
}

SIM_API aclError aclrtEventElapsedTime(float* milliseconds, aclrtEvent start_handle, aclrtEvent end_handle) {
    ENTER();
    REQUIRE(milliseconds);
    LOCK();
    EVENT(start, start_handle);
    REQUIRE(sim_object_is_locked(end_handle, SIM_EVENT));
    const struct sim_event* end = end_handle;
    REQUIRE(start->recorded && end->recorded && sim_event_done(start) && sim_event_done(end));
    *milliseconds = (float)((double)(int64_t)(end->time_ns - start->time_ns) / 1e6);
    return ACL_SUCCESS;
}
