// SPDX-License-Identifier: Apache-2.0
//
// The life of the driver in a process, and the gate that a control checkpoint closes.
#include "process.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "context.h"
#include "fault.h"

static atomic_bool started;
static atomic_bool forked;  // the parent had started the driver: nothing works here
static atomic_bool ended;   // by an exit handler of its own: every call is refused until the process has ended
static pthread_mutex_t starting = PTHREAD_MUTEX_INITIALIZER;

// Inside counts calls that passed the gate. It is raised before closed is read, and closed is set before inside is
// read: sequentially consistent, so one of the two sees the other.
static atomic_int inside;
static atomic_bool closed;
static _Thread_local unsigned nesting;

static void after_fork_in_child(void) {
    if (atomic_load(&started)) atomic_store(&forked, true);
}

sim_result sim_process_start(const unsigned* devices, unsigned count) {
    if (atomic_load(&forked)) return SIM_NOT_INITIALIZED;
    if (atomic_load(&ended)) return SIM_DEINITIALIZED;
    pthread_mutex_lock(&starting);
    sim_result result = SIM_OK;
    if (!atomic_load(&started)) {
        sim_devices_show(devices, count);
        if (!sim_front_start())
            result = SIM_OPERATING_SYSTEM;
        else if (!pthread_atfork(NULL, NULL, after_fork_in_child))
            atomic_store(&started, true);
    }
    pthread_mutex_unlock(&starting);
    return result;
}

bool sim_process_started(void) {
    return atomic_load(&started) && !atomic_load(&forked);
}

bool sim_process_ended(void) {
    return atomic_load(&ended);
}

// ---- the gate -----------------------------------------------------------------------------------------------------
static void wait_until_open(void) {
    sim_lock();
    while (atomic_load(&closed)) sim_wait_progress_locked(SIM_FOREVER);
    sim_unlock();
}

// The memory, the contexts and the service stay until the process has ended (H100, r580: the device counts them, and the
// process can be locked, checkpointed, restored and unlocked). exit() goes no further while the process is locked.
static void shut_down(void) {
    if (!sim_process_started()) return;
    atomic_store(&ended, true);
    wait_until_open();
}

void sim_process_ends_at_exit(void) {
    static atomic_flag registered = ATOMIC_FLAG_INIT;
    if (!atomic_flag_test_and_set(&registered)) atexit(shut_down);
}

static void leave(void) {
    atomic_fetch_sub(&inside, 1);
    if (!atomic_load(&closed)) return;
    sim_lock();
    sim_progress_locked();
    sim_unlock();
}

static void enter(void) {
    for (;;) {
        atomic_fetch_add(&inside, 1);
        if (!atomic_load(&closed)) return;
        leave();
        wait_until_open();
    }
}

sim_result sim_call_begin(const char* function) {
    if (nesting++) return SIM_OK;
    if (!sim_process_started()) return SIM_NOT_INITIALIZED;
    enter();
    return atomic_load(&ended) ? SIM_DEINITIALIZED : sim_fault(function);
}

void sim_call_end(void) {
    if (--nesting) return;
    if (sim_process_started()) leave();
}

static bool all_idle_locked(void) {
    if (atomic_load(&inside)) return false;
    for (struct sim_context* context = sim_contexts(); context; context = context->next)
        for (struct sim_stream* stream = context->streams; stream; stream = stream->next)
            if (!sim_stream_idle_locked(stream)) return false;
    return true;
}

bool sim_gate_close(uint64_t deadline_ns) {
    sim_lock();
    atomic_store(&closed, true);
    bool idle = all_idle_locked();
    while (!idle && (deadline_ns == SIM_FOREVER || sim_now_ns() < deadline_ns)) {
        sim_wait_progress_locked(deadline_ns);
        idle = all_idle_locked();
    }
    if (!idle) {
        atomic_store(&closed, false);
        sim_progress_locked();
    }
    sim_unlock();
    return idle;
}

void sim_gate_shut(void) {
    atomic_store(&closed, true);
}

void sim_gate_open(void) {
    sim_lock();
    atomic_store(&closed, false);
    sim_progress_locked();
    sim_unlock();
}
