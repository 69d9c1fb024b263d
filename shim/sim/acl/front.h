// SPDX-License-Identifier: Apache-2.0
//
// What every front function does first, and the translations all of them need.
#ifndef GCR_SIM_ACL_FRONT_H
#define GCR_SIM_ACL_FRONT_H

#include "../../abi/acl.h"
#include "context.h"
#include "fault.h"
#include "process.h"

#define SIM_API __attribute__((visibility("default")))

enum { FRONT_HUGE_1G = 1 << 30 };

struct front_version {  // of the CANN that this library plays; one object per library
    int major;
    int minor;
    int api_minor;  // what aclrtGetVersion answers
};
extern const struct front_version front_version;
bool front_is_at_least(int major, int minor);

aclError front_result(sim_result result);
sim_result front_start(void);  // ACL needs no initialisation call: the first call of any kind starts the runtime

static inline void front_leave(const int* entered) {
    (void)entered;
    sim_call_end();
}

// A call that the runtime holds back while the process is locked for a snapshot: those that change device resources
// (GLOBAL_STATE_WAIT_IF_LOCKED in the vendor's source, release 9.1).
#define ENTER()                                                   \
    sim_result begun_ = front_start();                            \
    if (begun_) return front_result(begun_);                      \
    __attribute__((cleanup(front_leave))) const int entered_ = 0; \
    begun_ = sim_call_begin(__func__);                            \
    if (begun_) return front_result(begun_)

// A call that goes on while the process is locked: queries, synchronisation, the snapshot calls themselves.
#define LOOK()                                 \
    sim_result begun_ = front_start();         \
    if (!begun_) begun_ = sim_fault(__func__); \
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

#define DEVICE(ordinal) \
    if ((ordinal) < 0 || (unsigned)(ordinal) >= sim_device_count()) return ACL_ERROR_RT_INVALID_DEVICEID

#define REQUIRE(condition) \
    if (!(condition)) return ACL_ERROR_RT_PARAM_INVALID

// With sim_lock: the stream behind a handle; null is the current context's default stream, which orders with no other.
struct sim_stream* front_stream(aclrtStream handle, aclError* result);
aclError front_submit(aclrtStream handle, struct sim_operation* operation);

// With sim_lock: where synchronous copies run, beside all streams.
struct sim_stream* front_copy_stream(struct sim_context* context);

bool front_is_huge_1g(aclrtMemAttr attribute);
bool front_is_device_memory(aclrtMemAttr attribute);
size_t front_granularity(aclrtMemAttr attribute);

#endif
