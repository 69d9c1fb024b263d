// SPDX-License-Identifier: Apache-2.0
//
// What every function of the simulated driver does first.
#ifndef ACME_FRONT_H
#define ACME_FRONT_H

#include "acme.h"
#include "context.h"
#include "process.h"

#define ACME_API __attribute__((visibility("default")))

acmeResult front_result(sim_result result);

static inline void front_leave(const int* entered) {
    (void)entered;
    sim_call_end();
}
static inline void front_unlock(const int* locked) {
    (void)locked;
    sim_unlock();
}

// Waits while this process is locked for a checkpoint; then the machine's lock until the function returns.
#define ENTER()                                                   \
    __attribute__((cleanup(front_leave))) const int entered_ = 0; \
    sim_result begun_ = sim_call_begin(__func__);                 \
    if (begun_) return front_result(begun_);                      \
    __attribute__((cleanup(front_unlock))) const int locked_ = 0; \
    sim_lock()

#define REQUIRE(condition) \
    if (!(condition)) return ACME_INVALID
#define DEVICE(device) \
    if ((device) < 0 || (unsigned)(device) >= sim_device_count()) return ACME_NO_DEVICE
#define CONTEXT(name)                               \
    struct sim_context* name;                       \
    sim_result usable_ = sim_context_usable(&name); \
    if (usable_) return front_result(usable_)

#endif
