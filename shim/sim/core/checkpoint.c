// SPDX-License-Identifier: Apache-2.0
//
// What the driver does to a process for a control checkpoint, in that process.
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "context.h"
#include "fault.h"
#include "process.h"

static atomic_int state = SIM_PROCESS_RUNNING;
static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
static bool doomed;  // what was checkpointed can never be restored
static struct sim_config left;  // the machine of the checkpoint: CRIU may bring the process to another one

// ---- checkpoint -----------------------------------------------------------------------------------------------------
// r580 checkpoints a process that holds imported, IPC or shared exportable memory without complaint and can then never
// restore it: docs/design.md, "Traps". Memory that was handed over in full is not here any more.
static bool never_restorable(const struct sim_physical* physical) {
    bool shared = physical->imported || physical->exported || (physical->exportable && physical->mappings);
    return shared || physical->doomed;
}

// Unified memory: the driver refuses (not yet seen on our own machine).
static bool has_managed_memory(void) {
    struct sim_ranges* all = sim_physical_all();
    for (size_t i = 0; i < all->count; i++) {
        const struct sim_mapping* mapping = ((struct sim_physical*)all->items[i])->first_mapping;
        if (mapping && mapping->reservation->cpu_visible) return true;
    }
    return false;
}

static void save_contexts_locked(void) {
    for (struct sim_context* context = sim_contexts(); context; context = context->next) sim_context_save(context);
}

static sim_result save_memory_locked(void) {
    struct sim_ranges* all = sim_physical_all();
    doomed = false;
    for (size_t i = 0; i < all->count; i++) {
        struct sim_physical* physical = (struct sim_physical*)all->items[i];
        doomed = doomed || never_restorable(physical);
        sim_result result = sim_physical_save(physical);
        if (result) return result;
    }
    return SIM_OK;
}

bool sim_process_checkpointed(void) {
    return atomic_load(&state) == SIM_PROCESS_CHECKPOINTED;
}

static sim_result checkpoint(void) {
    sim_result result = sim_fault("checkpoint.checkpoint");
    if (result) return result;
    sim_sleep_ms(sim_machine_config()->control_ms);
    sim_front_saved();
    left = *sim_machine_config();
    sim_lock();
    if (has_managed_memory()) {
        sim_unlock();
        sim_front_restored();
        return SIM_NOT_SUPPORTED;
    }
    save_contexts_locked();
    result = save_memory_locked();
    sim_unlock();
    if (!result) result = sim_fault("checkpoint.copied");
    atomic_store(&state, result ? SIM_PROCESS_FAILED : SIM_PROCESS_CHECKPOINTED);
    return result;
}

// ---- restore --------------------------------------------------------------------------------------------------------
static bool device_of(const struct sim_config* machine, const uint8_t uuid[16], unsigned* device) {
    uint8_t candidate[16];
    for (*device = 0; *device < machine->devices; ++*device) {
        sim_machine_uuid_of(machine->number, *device, candidate);
        if (!memcmp(candidate, uuid, sizeof candidate)) return true;
    }
    return false;
}

static bool mapped_to(const struct sim_service_request* request, unsigned old, unsigned* new) {
    for (unsigned i = 0; i < request->pair_count; i++) {
        unsigned from;
        if (device_of(&left, request->pairs[i].from, &from) && from == old)
            return device_of(sim_machine_config(), request->pairs[i].to, new);
    }
    return false;
}

// Every device of the machine must be named, also one that is hidden from the process (seen on two H200s), and no two may
// meet on one. On another machine that is so by the driver's documentation.
static sim_result remap_devices(const struct sim_service_request* request) {
    unsigned becomes[SIM_MAX_DEVICES], real[SIM_MAX_DEVICES];
    uint32_t taken = 0;
    for (unsigned old = 0; old < left.devices; old++) {
        if (!mapped_to(request, old, &becomes[old]) || taken >> becomes[old] & 1) return SIM_INVALID_VALUE;
        taken |= 1u << becomes[old];
    }
    for (unsigned i = 0; i < sim_device_count(); i++) real[i] = becomes[sim_device_real(i)];
    sim_device_remap(real);
    return SIM_OK;
}

static sim_result recreate_memory_locked(void) {
    struct sim_ranges* all = sim_physical_all();
    for (size_t i = 0; i < all->count; i++) {
        struct sim_physical* physical = (struct sim_physical*)all->items[i];
        sim_result result = physical->saved ? sim_physical_recreate(physical) : SIM_OK;
        if (result) return result;
    }
    for (size_t i = 0; i < all->count; i++) sim_physical_forget_saved((struct sim_physical*)all->items[i]);
    return SIM_OK;
}

static sim_result recreate_locked(void) {
    sim_result result = recreate_memory_locked();
    for (struct sim_context* context = sim_contexts(); context && !result; context = context->next)
        if (context->alive) result = sim_context_recreate(context);
    return result;
}

// A restore that fails half-way is for good; so says every report (docs/design.md, "Traps").
static sim_result restore(const struct sim_service_request* request) {
    sim_result result = sim_fault("checkpoint.restore");
    if (result) return result;
    bool elsewhere = left.number != sim_machine_config()->number;
    result = request->pair_count ? remap_devices(request) : elsewhere ? SIM_INVALID_DEVICE : SIM_OK;
    if (result) return result;
    sim_machine_begin_anew();
    sim_sleep_ms(sim_machine_config()->control_ms);
    sim_lock();
    result = doomed ? SIM_OPERATING_SYSTEM : recreate_locked();
    sim_unlock();
    if (!result) result = sim_fault("checkpoint.recreated");
    if (!result) sim_front_restored();
    atomic_store(&state, result ? SIM_PROCESS_FAILED : SIM_PROCESS_LOCKED);
    return result;
}

// ---- the service ----------------------------------------------------------------------------------------------------
static sim_result lock(uint32_t timeout_ms) {
    sim_result result = sim_fault("checkpoint.lock");
    if (result) return result;
    uint64_t deadline = timeout_ms ? sim_now_ns() + (uint64_t)timeout_ms * 1000000 : SIM_FOREVER;
    if (!sim_gate_close(deadline)) return SIM_NOT_READY;
    atomic_store(&state, SIM_PROCESS_LOCKED);
    return SIM_OK;
}

static sim_result unlock(void) {
    sim_result result = sim_fault("checkpoint.unlock");
    if (result) return result;
    atomic_store(&state, SIM_PROCESS_RUNNING);
    sim_gate_open();
    return SIM_OK;
}

static sim_result step(const struct sim_service_request* request) {
    static const enum sim_process_state needed[] = {
        [SIM_SERVICE_LOCK] = SIM_PROCESS_RUNNING,
        [SIM_SERVICE_CHECKPOINT] = SIM_PROCESS_LOCKED,
        [SIM_SERVICE_RESTORE] = SIM_PROCESS_CHECKPOINTED,
        [SIM_SERVICE_UNLOCK] = SIM_PROCESS_LOCKED,
    };
    int now = atomic_load(&state);
    // After a failed restore the driver answers 304 to restore and 401 to the rest, for ever.
    if (now == SIM_PROCESS_FAILED && request->operation == SIM_SERVICE_RESTORE) return SIM_OPERATING_SYSTEM;
    if (now != (int)needed[request->operation]) return SIM_ILLEGAL_STATE;
    switch (request->operation) {
        case SIM_SERVICE_LOCK:
            return lock(request->timeout_ms);
        case SIM_SERVICE_CHECKPOINT:
            return checkpoint();
        case SIM_SERVICE_RESTORE:
            return restore(request);
        default:
            return unlock();
    }
}

void sim_service_perform(const struct sim_service_request* request, struct sim_service_reply* reply) {
    reply->result = SIM_INVALID_VALUE;
    if (request->operation == SIM_SERVICE_STATE || request->operation == SIM_SERVICE_THREAD) {
        reply->result = SIM_OK;
        reply->value = request->operation == SIM_SERVICE_STATE ? atomic_load(&state) : sim_service_thread();
    } else if (request->operation <= SIM_SERVICE_UNLOCK && request->pair_count <= SIM_MAX_DEVICES) {
        pthread_mutex_lock(&one_at_a_time);
        reply->result = (int32_t)step(request);
        pthread_mutex_unlock(&one_at_a_time);
    }
}
