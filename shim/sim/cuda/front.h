// SPDX-License-Identifier: Apache-2.0
//
// What every front function does first, and the translations all of them need.
#ifndef GCR_SIM_CUDA_FRONT_H
#define GCR_SIM_CUDA_FRONT_H

#include "abi.h"
#include "context.h"
#include "process.h"

#define SIM_API __attribute__((visibility("default")))

enum { FRONT_DRIVER_VERSION = 13000 };  // the newest ABI spoken here: that of the r580 runs it is modelled on

CUresult front_result(sim_result result);

static inline void front_leave(const int* entered) {
    (void)entered;
    sim_call_end();
}

// The call counts as inside the driver until it returns. Returns at once on an injected fault or without cuInit.
#define ENTER()                                                   \
    __attribute__((cleanup(front_leave))) const int entered_ = 0; \
    sim_result begun_ = sim_call_begin(__func__);                 \
    if (begun_) return front_result(begun_)

// sim_lock until the end of the function. Declared after ENTER, so it is given up first.
static inline void front_unlock(const int* locked) {
    (void)locked;
    sim_unlock();
}
#define LOCK()                                                    \
    __attribute__((cleanup(front_unlock))) const int locked_ = 0; \
    sim_lock()

// The calling thread's context, alive and without error, or return.
#define CONTEXT(name)                               \
    struct sim_context* name;                       \
    sim_result usable_ = sim_context_usable(&name); \
    if (usable_) return front_result(usable_)

// A call that disturbs a capture in progress.
#define UNSAFE_IN_CAPTURE()                                     \
    do {                                                        \
        sim_result unsafe_ = sim_capture_check_unsafe_locked(); \
        if (unsafe_) return front_result(unsafe_);              \
    } while (0)

enum { EVENT_DISABLE_TIMING = 2, EVENT_INTERPROCESS = 4 };
#define EVENT(event) \
    if (!sim_object_is_locked(event, SIM_EVENT)) return CUDA_ERROR_INVALID_HANDLE

#define DEVICE(ordinal) \
    if ((ordinal) < 0 || (unsigned)(ordinal) >= sim_device_count()) return CUDA_ERROR_INVALID_DEVICE

// With sim_lock: the stream behind a handle, 0, 1 and 2 included. Null: not a stream, *result says how to fail.
struct sim_stream* front_stream(CUstream handle, CUresult* result);

static inline CUstream per_thread(CUstream handle) {
    return handle ? handle : SIM_STREAM_PER_THREAD_HANDLE;
}

CUresult front_submit(CUstream stream, struct sim_operation* operation);
CUresult front_submit_and_wait(CUstream stream, struct sim_operation* operation);
void front_drop(struct sim_operation* operation);

#endif
