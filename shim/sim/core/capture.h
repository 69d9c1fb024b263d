// SPDX-License-Identifier: Apache-2.0
//
// Stream capture and graphs. A graph here is the list of captured operations in the order they were submitted, which
// is one of the orders their dependencies allow. All functions want sim_lock held.
#ifndef GCR_SIM_CAPTURE_H
#define GCR_SIM_CAPTURE_H

#include "context.h"

enum sim_capture_mode { SIM_CAPTURE_GLOBAL, SIM_CAPTURE_THREAD_LOCAL, SIM_CAPTURE_RELAXED };
enum sim_capture_status { SIM_CAPTURE_NONE, SIM_CAPTURE_ACTIVE, SIM_CAPTURE_BROKEN };

struct sim_graph {
    struct sim_operation* first;
    struct sim_operation* last;
    unsigned count;
    unsigned references;  // the graph's own handle, and every executable made from it
};

struct sim_graph_exec {
    struct sim_graph* graph;
};

struct sim_capture {
    struct sim_graph* graph;
    struct sim_stream* origin;
    enum sim_capture_mode mode;
    bool broken;
    pthread_t thread;
    uint64_t id;
    struct sim_capture* next;
};

sim_result sim_capture_begin_locked(struct sim_stream* stream, enum sim_capture_mode mode);
sim_result sim_capture_end_locked(struct sim_stream* stream, struct sim_graph** graph);
void sim_capture_abandon_locked(struct sim_stream* stream);  // it ends
void sim_capture_leave_locked(struct sim_stream* stream);  // destroyed: a capture that can go on without it does
sim_result sim_capture_record_locked(struct sim_stream* stream, struct sim_operation* operation);
sim_result sim_capture_event_record_locked(struct sim_stream* stream, struct sim_event* event);
sim_result sim_capture_join_locked(struct sim_stream* stream, struct sim_event* event);
enum sim_capture_status sim_capture_status_locked(const struct sim_stream* stream);
enum sim_capture_mode sim_capture_exchange_mode(enum sim_capture_mode mode);  // of the calling thread

// A call that must not be made while a capture is going on; breaks the captures it disturbs.
sim_result sim_capture_check_unsafe_locked(void);
// Work for the legacy stream while a blocking stream of its context captures: breaks that capture.
sim_result sim_capture_check_implicit_locked(struct sim_stream* stream);
// The same of a question, which breaks nothing.
sim_result sim_capture_ask_implicit_locked(const struct sim_stream* stream);
// Waiting for a stream that captures.
sim_result sim_capture_check_wait_locked(struct sim_stream* stream);

// Waiting for a context: no capture of any mode may be going on in it.
sim_result sim_capture_check_context_locked(const struct sim_context* context);
// Asking or waiting for an event that was last recorded in a capture.
sim_result sim_capture_check_event_locked(const struct sim_event* event);

struct sim_graph* sim_graph_create_locked(void);
void sim_graph_unreference_locked(struct sim_graph* graph);
sim_result sim_graph_instantiate_locked(struct sim_graph* graph, struct sim_graph_exec** exec);
void sim_graph_exec_destroy_locked(struct sim_graph_exec* exec);
sim_result sim_graph_launch_locked(struct sim_graph_exec* exec, struct sim_stream* stream);

#endif
