// SPDX-License-Identifier: Apache-2.0
//
// Contexts: the current one of a thread, what each owns, primary contexts and their counting.
#include "context.h"

#include <stdlib.h>
#include <string.h>

#include "module.h"

enum { STACK = 64 };

// Destroyed contexts stay allocated: a thread may still have one current, and must be told so.
static struct sim_context* contexts;
static struct sim_context* primaries[SIM_MAX_DEVICES];
static uint64_t next_id = 1;
static _Thread_local struct sim_context* stack[STACK];
static _Thread_local unsigned depth;

static unsigned real_devices[SIM_MAX_DEVICES];
static unsigned device_count;
static uint32_t shown;  // bit d: device d of the machine, when this process began

// ---- devices ------------------------------------------------------------------------------------------------------
void sim_devices_show(const unsigned* real, unsigned count) {
    memcpy(real_devices, real, count * sizeof *real);
    device_count = count;
    for (unsigned i = 0; i < count; i++) shown |= 1u << real[i];
}

bool sim_device_was_shown(unsigned real) {
    return shown >> real & 1;
}

void sim_device_remap(const unsigned* real) {
    memcpy(real_devices, real, device_count * sizeof *real);
}

unsigned sim_device_count(void) {
    return device_count;
}

unsigned sim_device_real(unsigned ordinal) {
    return real_devices[ordinal];
}

unsigned sim_device_ordinal(unsigned real) {
    for (unsigned i = 0; i < device_count; i++)
        if (real_devices[i] == real) return i;
    return 0;
}

bool sim_device_reaches(unsigned ordinal, unsigned peer) {
    return sim_machine_reaches(real_devices[ordinal], real_devices[peer]);
}

// ---- the calling thread's stack -----------------------------------------------------------------------------------
struct sim_context* sim_context_current(void) {
    return depth ? stack[depth - 1] : NULL;
}

void sim_context_set_current(struct sim_context* context) {
    if (depth) depth--;
    if (context) stack[depth++] = context;
}

sim_result sim_context_push(struct sim_context* context) {
    if (depth == STACK) return SIM_INVALID_VALUE;
    stack[depth++] = context;
    return SIM_OK;
}

sim_result sim_context_pop(struct sim_context** context) {
    if (!depth) return SIM_INVALID_CONTEXT;
    *context = stack[--depth];
    return SIM_OK;
}

sim_result sim_context_usable(struct sim_context** context) {
    *context = sim_context_current();
    if (!*context) return SIM_INVALID_CONTEXT;
    if (!(*context)->alive) return SIM_CONTEXT_DESTROYED;
    return (*context)->error;
}

// ---- life -----------------------------------------------------------------------------------------------------------
static sim_result open_context(struct sim_context* context) {
    sim_result result = sim_physical_create(context->device, sim_machine_config()->context_bytes, &context->physical);
    if (result) return result;
    context->alive = true;
    context->error = SIM_OK;
    context->id = next_id++;
    return SIM_OK;
}

static struct sim_context* make(unsigned device, unsigned flags, bool primary) {
    struct sim_context* made = calloc(1, sizeof *made);
    if (!made) return NULL;
    *made = (struct sim_context){.device = device, .flags = flags, .primary = primary, .next = contexts};
    if (!sim_object_add_locked(made, SIM_CONTEXT)) {
        free(made);
        return NULL;
    }
    contexts = made;
    return made;
}

sim_result sim_context_create(unsigned device, unsigned flags, struct sim_context** context) {
    struct sim_context* made = make(device, flags, false);
    if (!made) return SIM_OUT_OF_MEMORY;
    sim_result result = open_context(made);
    if (!result) *context = made;
    return result;
}

static void close_context(struct sim_context* context) {
    context->alive = false;  // first: no new work is accepted while the old is dropped
    sim_streams_stop_of(context);
    sim_events_destroy_of(context);
    sim_modules_unload_of(context);
    sim_allocations_free_of(context);
    sim_physical_release_handle(context->physical);
    context->physical = NULL;
    context->peers = 0;
}

sim_result sim_context_destroy(struct sim_context* context) {
    if (context->primary) return SIM_INVALID_CONTEXT;
    if (!context->alive) return SIM_CONTEXT_DESTROYED;
    close_context(context);
    if (sim_context_current() == context) depth--;
    return SIM_OK;
}

struct sim_context* sim_primary_of(unsigned device) {
    if (!primaries[device]) primaries[device] = make(device, 0, true);
    return primaries[device];
}

sim_result sim_primary_retain(unsigned device, struct sim_context** context) {
    struct sim_context* primary = sim_primary_of(device);
    if (!primary) return SIM_OUT_OF_MEMORY;
    sim_result result = primary->alive ? SIM_OK : open_context(primary);
    if (result) return result;
    primary->retained++;
    *context = primary;
    return SIM_OK;
}

sim_result sim_primary_release(unsigned device) {
    struct sim_context* primary = primaries[device];
    if (!primary || !primary->retained) return SIM_INVALID_CONTEXT;
    if (--primary->retained == 0 && primary->alive) close_context(primary);
    return SIM_OK;
}

sim_result sim_primary_reset(unsigned device) {
    struct sim_context* primary = primaries[device];
    if (!primary || !primary->alive) return SIM_OK;
    close_context(primary);  // also for a thread that retained it: the next retain brings it back
    return SIM_OK;
}

struct sim_context* sim_contexts(void) {
    return contexts;
}

void sim_context_fail(struct sim_context* context, sim_result error) {
    if (!context->error) context->error = error;
}

// ---- control checkpoint -------------------------------------------------------------------------------------------
// What a context costs on the device has no contents a program could miss: it is let go and made anew.
void sim_context_save(struct sim_context* context) {
    if (context->physical) sim_physical_release_handle(context->physical);
    context->physical = NULL;
}

sim_result sim_context_recreate(struct sim_context* context) {
    return sim_physical_create(context->device, sim_machine_config()->context_bytes, &context->physical);
}
