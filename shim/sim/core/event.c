// SPDX-License-Identifier: Apache-2.0
//
// Events: a record is an operation; a wait takes the newest record at the time of the call.
#include <stdlib.h>

#include "capture.h"
#include "context.h"

struct event_operation {
    struct sim_operation operation;
    struct sim_event* event;
    uint64_t record;
};

void sim_event_unreference(struct sim_event* event) {
    if (--event->references == 0) free(event);
}

static void drop(struct sim_operation* operation) {
    sim_event_unreference(((struct event_operation*)operation)->event);
    free(operation);
}

// Dropped without having run (context gone, sticky error): whoever waits for it must not wait for ever.
static void drop_record(struct sim_operation* operation) {
    struct event_operation* self = (struct event_operation*)operation;
    if (self->event->completed < self->record) self->event->completed = self->record;
    drop(operation);
}

static void run_record(struct sim_operation* operation, struct sim_stream* stream) {
    (void)stream;
    struct event_operation* self = (struct event_operation*)operation;
    sim_lock();
    self->event->time_ns = sim_now_ns();
    if (self->event->completed < self->record) self->event->completed = self->record;
    sim_progress_locked();
    sim_unlock();
}

static void run_wait(struct sim_operation* operation, struct sim_stream* stream) {
    const struct event_operation* self = (struct event_operation*)operation;
    sim_lock();
    while (self->event->completed < self->record && sim_wait_in_stream_locked(stream)) {
    }
    sim_unlock();
}

static struct sim_operation* make(struct sim_event* event, bool record) {
    struct event_operation* made = calloc(1, sizeof *made);
    if (!made) return NULL;
    made->operation.run = record ? run_record : run_wait;
    made->operation.drop = record ? drop_record : drop;
    made->event = event;
    made->record = event->recorded;
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
    return event->completed >= event->recorded;
}

sim_result sim_event_record(struct sim_event* event, struct sim_stream* stream) {
    if (event->context != stream->context) return SIM_INVALID_HANDLE;
    if (stream->capture) return sim_capture_event_record_locked(stream, event);
    event->capture = NULL;
    event->recorded++;
    return sim_submit_locked(stream, make(event, true));
}

sim_result sim_event_wait(struct sim_stream* stream, struct sim_event* event) {
    if (event->capture) return sim_capture_join_locked(stream, event);
    if (stream->capture) return SIM_CAPTURE_ISOLATION;
    if (sim_event_done(event)) return SIM_OK;
    return sim_submit_locked(stream, make(event, false));
}
