// SPDX-License-Identifier: Apache-2.0
//
// What every function of the simulated HIP runtime does first, and the translations all of them need.
//
// As in the real runtime, an exported function (exports.c, one per line of symbols.def) is a thin entry to an inner
// one: hipMalloc to sim_hipMalloc. Inner functions call each other directly. A few call an exported name instead, again
// as in the real runtime: such a call goes through the PLT, and a library that interposes the name sees it.
#ifndef GCR_SIM_HIP_FRONT_H
#define GCR_SIM_HIP_FRONT_H

// The objects behind the vendor's opaque handles are the core's.
#define ihipStream_t sim_stream
#define ihipEvent_t sim_event
#define ihipModule_t sim_module
#define ihipModuleSymbol_t sim_function
#define ihipMemPoolHandle_t sim_pool
#define ihipGraph sim_graph
#define hipGraphExec sim_graph_exec
#define hipGraphNode sim_operation
#include "abi/hip.h"
#include "context.h"
#include "process.h"

#define SIM_API __attribute__((visibility("default")))

#define API(node, name, parameters, arguments) \
    hipError_t name parameters;                \
    hipError_t sim_##name parameters;
#define PLAIN(node, name)
#include "symbols.def"
#undef API
#undef PLAIN

hipError_t front_result(sim_result result);

// Around every exported function. front_end is due in any case; it keeps the error for hipGetLastError.
hipError_t front_begin(const char* function);
hipError_t front_end(hipError_t result);

// sim_lock until the end of the block.
static inline void front_unlock(const int* locked) {
    (void)locked;
    sim_unlock();
}
#define LOCK()                                                    \
    __attribute__((cleanup(front_unlock))) const int locked_ = 0; \
    sim_lock()

// With sim_lock: the current device's context, made at first use; or return.
hipError_t front_context(struct sim_context** context);
hipError_t front_context_of(unsigned device, struct sim_context** context);
unsigned front_device(void);
#define CONTEXT(name)                          \
    struct sim_context* name;                  \
    hipError_t usable_ = front_context(&name); \
    if (usable_) return usable_

#define DEVICE(ordinal) \
    if ((ordinal) < 0 || (unsigned)(ordinal) >= sim_device_count()) return hipErrorInvalidDevice

// A call that disturbs a capture in progress.
#define UNSAFE_IN_CAPTURE()                                     \
    do {                                                        \
        sim_result unsafe_ = sim_capture_check_unsafe_locked(); \
        if (unsafe_) return front_result(unsafe_);              \
    } while (0)

// With sim_lock: the stream behind a handle, the default ones included; or return.
struct sim_stream* front_stream(hipStream_t handle, hipError_t* result);
#define STREAM(name, handle)                                 \
    hipError_t found_;                                       \
    struct sim_stream* name = front_stream(handle, &found_); \
    if (!name) return found_

static inline hipStream_t front_per_thread(hipStream_t handle) {
    return handle ? handle : (hipStream_t)(uintptr_t)HIP_STREAM_PER_THREAD;
}

// With sim_lock. Both take the operation in any case.
hipError_t front_submit(hipStream_t stream, struct sim_operation* operation);
hipError_t front_submit_and_wait(hipStream_t stream, struct sim_operation* operation);

#endif
