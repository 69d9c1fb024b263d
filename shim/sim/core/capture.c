// SPDX-License-Identifier: Apache-2.0
#include "capture.h"

#include <stdlib.h>

static struct sim_capture* captures;
static uint64_t next_id = 1;
static _Thread_local enum sim_capture_mode thread_mode = SIM_CAPTURE_GLOBAL;

// ---- graphs -------------------------------------------------------------------------------------------------------
struct sim_graph* sim_graph_create_locked(void) {
    struct sim_graph* made = calloc(1, sizeof *made);
    if (!made || !sim_object_add_locked(made, SIM_GRAPH)) {
        free(made);
        return NULL;
    }
    made->references = 1;
    return made;
}

void sim_graph_unreference_locked(struct sim_graph* graph) {
    if (--graph->references) return;
    while (graph->first) {
        struct sim_operation* gone = graph->first;
        graph->first = gone->next;
        gone->drop(gone);
    }
    free(graph);
}

static void append(struct sim_graph* graph, struct sim_operation* operation) {
    operation->next = NULL;
    if (graph->last)
        graph->last->next = operation;
    else
        graph->first = operation;
    graph->last = operation;
    graph->count++;
}

sim_result sim_graph_instantiate_locked(struct sim_graph* graph, struct sim_graph_exec** exec) {
    struct sim_graph_exec* made = calloc(1, sizeof *made);
    if (!made || !sim_object_add_locked(made, SIM_GRAPH_EXEC)) {
        free(made);
        return SIM_OUT_OF_MEMORY;
    }
    made->graph = graph;
    graph->references++;
    *exec = made;
    return SIM_OK;
}

void sim_graph_exec_destroy_locked(struct sim_graph_exec* exec) {
    sim_object_remove_locked(exec);
    sim_graph_unreference_locked(exec->graph);
    free(exec);
}

struct launch {
    struct sim_operation operation;
    struct sim_graph* graph;
};

static void run_graph(struct sim_operation* operation, struct sim_stream* stream) {
    for (struct sim_operation* node = ((struct launch*)operation)->graph->first; node; node = node->next)
        node->run(node, stream);
}

static void drop_launch(struct sim_operation* operation) {
    sim_graph_unreference_locked(((struct launch*)operation)->graph);
    free(operation);
}

sim_result sim_graph_launch_locked(struct sim_graph_exec* exec, struct sim_stream* stream) {
    struct launch* made = calloc(1, sizeof *made);
    if (!made) return SIM_OUT_OF_MEMORY;
    made->operation.run = run_graph;
    made->operation.drop = drop_launch;
    made->graph = exec->graph;
    exec->graph->references++;
    return sim_submit_locked(stream, &made->operation);
}

// ---- capture ------------------------------------------------------------------------------------------------------
sim_result sim_capture_begin_locked(struct sim_stream* stream, enum sim_capture_mode mode) {
    if (stream->role == SIM_STREAM_LEGACY) return SIM_CAPTURE_UNSUPPORTED;
    if (stream->capture) return SIM_ILLEGAL_STATE;
    struct sim_capture* made = calloc(1, sizeof *made);
    struct sim_graph* graph = made ? sim_graph_create_locked() : NULL;
    if (!graph) {
        free(made);
        return SIM_OUT_OF_MEMORY;
    }
    *made = (struct sim_capture){
        .graph = graph, .origin = stream, .mode = mode, .thread = pthread_self(), .id = next_id++, .next = captures};
    captures = made;
    stream->capture = made;
    return SIM_OK;
}

static void leave(struct sim_stream* stream) {
    stream->capture = NULL;
    stream->captured = 0;
    stream->unjoined = false;
}

static void leave_streams(const struct sim_capture* capture) {
    for (struct sim_context* context = sim_contexts(); context; context = context->next) {
        for (struct sim_stream* stream = context->streams; stream; stream = stream->next)
            if (stream->capture == capture) leave(stream);
        for (struct sim_event* event = context->events; event; event = event->next)
            if (event->capture == capture) event->capture = NULL;
    }
}

static void forget(struct sim_capture* capture, bool keep_graph) {
    struct sim_capture** link = &captures;
    while (*link != capture) link = &(*link)->next;
    *link = capture->next;
    leave_streams(capture);
    if (!keep_graph) {
        sim_object_remove_locked(capture->graph);
        sim_graph_unreference_locked(capture->graph);
    }
    free(capture);
}

static bool has_unjoined(const struct sim_capture* capture) {
    for (struct sim_context* context = sim_contexts(); context; context = context->next)
        for (struct sim_stream* stream = context->streams; stream; stream = stream->next)
            if (stream->capture == capture && stream->unjoined) return true;
    return false;
}

sim_result sim_capture_end_locked(struct sim_stream* stream, struct sim_graph** graph) {
    struct sim_capture* capture = stream->capture;
    if (!capture) return SIM_ILLEGAL_STATE;
    if (capture->origin != stream) {
        capture->broken = true;
        return SIM_CAPTURE_UNMATCHED;
    }
    if (capture->mode != SIM_CAPTURE_RELAXED && !pthread_equal(capture->thread, pthread_self()))
        return SIM_CAPTURE_WRONG_THREAD;
    sim_result result = capture->broken         ? SIM_CAPTURE_INVALIDATED
                        : has_unjoined(capture) ? SIM_CAPTURE_UNJOINED
                                                : SIM_OK;
    *graph = result ? NULL : capture->graph;
    forget(capture, result == SIM_OK);
    return result;
}

void sim_capture_abandon_locked(struct sim_stream* stream) {
    forget(stream->capture, false);
}

// The capture goes on without a stream that left nothing in it that is not joined: seen on an H100.
void sim_capture_leave_locked(struct sim_stream* stream) {
    if (stream == stream->capture->origin || stream->unjoined) {
        sim_capture_abandon_locked(stream);
        return;
    }
    for (struct sim_context* context = sim_contexts(); context; context = context->next)
        for (struct sim_event* event = context->events; event; event = event->next)
            if (event->capture == stream->capture && event->captured_in == stream) event->capture = NULL;
    leave(stream);
}

static void touch(struct sim_stream* stream) {
    stream->captured++;
    stream->unjoined = stream->capture->origin != stream;
}

sim_result sim_capture_record_locked(struct sim_stream* stream, struct sim_operation* operation) {
    if (stream->capture->broken) {
        operation->drop(operation);
        return SIM_CAPTURE_INVALIDATED;
    }
    append(stream->capture->graph, operation);
    touch(stream);
    return SIM_OK;
}

sim_result sim_capture_event_record_locked(struct sim_stream* stream, struct sim_event* event) {
    if (stream->capture->broken) return SIM_CAPTURE_INVALIDATED;
    event->capture = stream->capture;
    event->captured_in = stream;
    event->captured_at = stream->captured;
    return SIM_OK;
}

sim_result sim_capture_join_locked(struct sim_stream* stream, struct sim_event* event) {
    struct sim_stream* other = event->captured_in;
    if (stream->capture == event->capture) {
        if (event->captured_at == other->captured) other->unjoined = false;
        if (stream != other) touch(stream);
        return SIM_OK;
    }
    if (stream->capture) return SIM_CAPTURE_MERGE;
    if (stream->role == SIM_STREAM_LEGACY) return SIM_CAPTURE_IMPLICIT;
    stream->capture = event->capture;
    return SIM_OK;
}

enum sim_capture_status sim_capture_status_locked(const struct sim_stream* stream) {
    if (!stream->capture) return SIM_CAPTURE_NONE;
    return stream->capture->broken ? SIM_CAPTURE_BROKEN : SIM_CAPTURE_ACTIVE;
}

enum sim_capture_mode sim_capture_exchange_mode(enum sim_capture_mode mode) {
    enum sim_capture_mode old = thread_mode;
    thread_mode = mode;
    return old;
}

static bool disturbs(const struct sim_capture* capture) {
    if (capture->mode == SIM_CAPTURE_RELAXED || thread_mode == SIM_CAPTURE_RELAXED) return false;
    if (pthread_equal(capture->thread, pthread_self())) return true;
    return capture->mode == SIM_CAPTURE_GLOBAL && thread_mode == SIM_CAPTURE_GLOBAL;
}

sim_result sim_capture_check_unsafe_locked(void) {
    sim_result result = SIM_OK;
    for (struct sim_capture* capture = captures; capture; capture = capture->next) {
        if (!disturbs(capture)) continue;
        capture->broken = true;
        result = SIM_CAPTURE_UNSUPPORTED;
    }
    return result;
}

static struct sim_capture* implicit_locked(const struct sim_stream* stream) {
    if (stream->role != SIM_STREAM_LEGACY || !captures) return NULL;
    for (struct sim_stream* other = stream->context->streams; other; other = other->next)
        if (other->capture && !other->non_blocking) return other->capture;
    return NULL;
}

sim_result sim_capture_ask_implicit_locked(const struct sim_stream* stream) {
    return implicit_locked(stream) ? SIM_CAPTURE_IMPLICIT : SIM_OK;
}

sim_result sim_capture_check_implicit_locked(struct sim_stream* stream) {
    struct sim_capture* capture = implicit_locked(stream);
    if (!capture) return SIM_OK;
    capture->broken = true;
    return SIM_CAPTURE_IMPLICIT;
}

sim_result sim_capture_check_wait_locked(struct sim_stream* stream) {
    if (!stream->capture) return SIM_OK;
    stream->capture->broken = true;
    return SIM_CAPTURE_UNSUPPORTED;
}

sim_result sim_capture_check_context_locked(const struct sim_context* context) {
    sim_result result = SIM_OK;
    for (struct sim_capture* capture = captures; capture; capture = capture->next) {
        if (capture->origin->context != context) continue;
        capture->broken = true;
        result = SIM_CAPTURE_UNSUPPORTED;
    }
    return result;
}

sim_result sim_capture_check_event_locked(const struct sim_event* event) {
    if (!event->capture) return SIM_OK;
    event->capture->broken = true;
    return SIM_CAPTURED_EVENT;
}
