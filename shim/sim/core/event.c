// SPDX-License-Identifier: Apache-2.0
//
// Events: a record is an operation; a wait takes the newest record at the time of the call. The records of an interprocess
// event are in the machine's table from the time on when its handle is asked for, so that other processes see them.
#include <stdlib.h>

#include "capture.h"
#include "context.h"

struct event_operation {
    struct sim_operation operation;
    struct sim_event* event;
    uint64_t record;
};

enum { POLL_NS = 300000 };  // for the record of another process, which does not tell us

void sim_event_unreference(struct sim_event* event) {
    if (--event->references) return;
    if (event->shared) sim_signal_let_go(&event->signal);
    free(event);
}

static uint64_t newest(const struct sim_event* event) {
    return event->shared ? sim_signal_recorded(&event->signal) : event->recorded;
}

static bool passed(const struct sim_event* event, uint64_t record) {
    return event->shared ? sim_signal_passed(&event->signal, record) : event->completed >= record;
}

static void complete(struct sim_event* event, uint64_t record) {
    if (event->shared)
        sim_signal_complete(&event->signal, record);
    else if (event->completed < record)
        event->completed = record;
}

static uint64_t deadline_of(const struct sim_event* event) {
    return event->shared ? sim_now_ns() + POLL_NS : SIM_FOREVER;
}

static void drop(struct sim_operation* operation) {
    sim_event_unreference(((struct event_operation*)operation)->event);
    free(operation);
}

// Dropped without having run (context gone, sticky error): a thread that waits for it must not wait for ever.
static void drop_record(struct sim_operation* operation) {
    struct event_operation* self = (struct event_operation*)operation;
    complete(self->event, self->record);
    drop(operation);
}

static void run_record(struct sim_operation* operation, struct sim_stream* stream) {
    (void)stream;
    struct event_operation* self = (struct event_operation*)operation;
    sim_lock();
    self->event->time_ns = sim_now_ns();
    complete(self->event, self->record);
    sim_progress_locked();
    sim_unlock();
}

static void run_wait(struct sim_operation* operation, struct sim_stream* stream) {
    const struct event_operation* self = (struct event_operation*)operation;
    sim_lock();
    while (!passed(self->event, self->record) && !stream->stopping) sim_wait_progress_locked(deadline_of(self->event));
    sim_unlock();
}

static struct sim_operation* make(struct sim_event* event, uint64_t number, bool record) {
    struct event_operation* made = calloc(1, sizeof *made);
    if (!made) return NULL;
    made->operation.run = record ? run_record : run_wait;
    made->operation.drop = record ? drop_record : drop;
    made->event = event;
    made->record = number;
    event->references++;
    return &made->operation;
}

sim_result sim_event_create(struct sim_context* context, unsigned flags, struct sim_event** event) {
    struct sim_event* made = calloc(1, sizeof *made);
    if (!made || !sim_object_add_locked(made, SIM_EVENT)) {
        free(made);
        return SIM_OUT_OF_MEMORY;
    }
    *made = (struct sim_event){.context = context, .flags = flags, .references = 1, .next = context->events};
    context->events = made;
    *event = made;
    return SIM_OK;
}

static void forget(struct sim_event* event) {
    sim_object_remove_locked(event);
    event->destroyed = true;
    sim_event_unreference(event);
}

void sim_event_destroy(struct sim_event* event) {
    struct sim_event** link = &event->context->events;
    while (*link != event) link = &(*link)->next;
    *link = event->next;
    forget(event);
}

void sim_events_destroy_of(struct sim_context* context) {
    struct sim_event* event = context->events;
    context->events = NULL;
    while (event) {
        struct sim_event* next = event->next;
        forget(event);
        event = next;
    }
}

bool sim_event_done(const struct sim_event* event) {
    return passed(event, newest(event));
}

sim_result sim_event_synchronize(struct sim_event* event) {
    uint64_t record = newest(event);
    struct sim_context* context = event->context;
    event->references++;  // another thread may destroy it meanwhile
    while (!passed(event, record)) sim_wait_progress_locked(deadline_of(event));
    sim_event_unreference(event);
    return context->error;
}

sim_result sim_event_share(struct sim_event* event) {
    if (event->shared) return SIM_OK;
    sim_result result = sim_signal_make(event->recorded, event->completed, &event->signal);
    event->shared = !result;
    return result;
}

sim_result sim_event_open(struct sim_context* context, unsigned flags, const struct sim_entry* signal,
                          struct sim_event** event) {
    sim_result result = sim_signal_open(signal);
    if (result) return result;
    result = sim_event_create(context, flags, event);
    if (result) {
        sim_signal_let_go(signal);
        return result;
    }
    (*event)->shared = (*event)->opened = true;
    (*event)->signal = *signal;
    return SIM_OK;
}

sim_result sim_event_record(struct sim_event* event, struct sim_stream* stream) {
    if (event->context != stream->context) return SIM_INVALID_HANDLE;
    if (stream->capture) return sim_capture_event_record_locked(stream, event);
    event->capture = NULL;
    uint64_t number = event->shared ? sim_signal_record(&event->signal) : ++event->recorded;
    return sim_submit_locked(stream, make(event, number, true));
}

sim_result sim_event_wait(struct sim_stream* stream, struct sim_event* event) {
    if (event->capture) return sim_capture_join_locked(stream, event);
    if (stream->capture) return SIM_CAPTURE_ISOLATION;
    uint64_t number = newest(event);
    if (passed(event, number)) return SIM_OK;
    return sim_submit_locked(stream, make(event, number, false));
}
