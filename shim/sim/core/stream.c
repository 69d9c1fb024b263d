// SPDX-License-Identifier: Apache-2.0
//
// Streams: a thread and a queue each, made at the first operation. Records stay allocated until the process ends, since
// fences and threads that wait may still name one; that of a destroyed stream becomes the next one's. Its counters go on,
// so that a thread that waits for the old one finds it done.
#include <signal.h>
#include <stdlib.h>

#include "capture.h"
#include "context.h"

static uint64_t next_id = 1;
static struct sim_stream* retired;  // of contexts that are gone

// ---- running ------------------------------------------------------------------------------------------------------
bool sim_wait_in_stream_locked(struct sim_stream* stream) {
    if (!stream->stopping) sim_wait_progress_locked(SIM_FOREVER);
    return !stream->stopping;
}

static bool fences_pass(struct sim_stream* stream, const struct sim_operation* operation) {
    for (unsigned i = 0; i < operation->fence_count; i++)
        while (operation->fences[i].stream->completed < operation->fences[i].sequence)
            if (!sim_wait_in_stream_locked(stream)) return false;
    return !stream->stopping;
}

static void run(struct sim_stream* stream, struct sim_operation* operation) {
    stream->running = true;
    if (fences_pass(stream, operation) && !stream->context->error) {
        sim_unlock();
        operation->run(operation, stream);
        sim_lock();
    }
    free(operation->fences);
    operation->drop(operation);
    stream->running = false;
    stream->completed++;
    sim_progress_locked();
}

static struct sim_operation* next_operation(struct sim_stream* stream) {
    while (!stream->head && !stream->stopping && !stream->closing) sim_wait_locked(&stream->wake);
    struct sim_operation* first = stream->head;
    if (!first) return NULL;
    stream->head = first->next;
    if (!stream->head) stream->tail = NULL;
    return first;
}

static void* work(void* argument) {
    struct sim_stream* stream = argument;
    struct sim_operation* operation;
    sim_lock();
    while ((operation = next_operation(stream))) run(stream, operation);
    stream->ended = true;
    sim_progress_locked();
    sim_unlock();
    return NULL;
}

static bool start(struct sim_stream* stream) {
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);  // inherited: the program's signals are not ours to take
    stream->started = pthread_create(&stream->thread, NULL, work, stream) == 0;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (stream->started) pthread_detach(stream->thread);
    return stream->started;
}

// ---- submitting ---------------------------------------------------------------------------------------------------
bool sim_stream_idle_locked(const struct sim_stream* stream) {
    return stream->completed == stream->submitted;
}

static bool orders_with_legacy(const struct sim_stream* stream) {
    return stream->role != SIM_STREAM_LEGACY && !stream->non_blocking;
}

static bool add_fence(struct sim_operation* operation, struct sim_stream* stream) {
    struct sim_fence* fences = realloc(operation->fences, (operation->fence_count + 1) * sizeof *fences);
    if (!fences) return false;
    fences[operation->fence_count++] = (struct sim_fence){stream, stream->submitted};
    operation->fences = fences;
    return true;
}

// The legacy stream waits for all blocking streams of its context, and they wait for it.
static bool add_implicit_fences(struct sim_stream* stream, struct sim_operation* operation) {
    struct sim_context* context = stream->context;
    if (orders_with_legacy(stream)) {
        struct sim_stream* legacy = context->legacy;
        return !legacy || sim_stream_idle_locked(legacy) || add_fence(operation, legacy);
    }
    if (stream->role != SIM_STREAM_LEGACY) return true;
    for (struct sim_stream* other = context->streams; other; other = other->next)
        if (orders_with_legacy(other) && !sim_stream_idle_locked(other) && !add_fence(operation, other)) return false;
    return true;
}

static void enqueue(struct sim_stream* stream, struct sim_operation* operation) {
    operation->next = NULL;
    if (stream->tail)
        stream->tail->next = operation;
    else
        stream->head = operation;
    stream->tail = operation;
    stream->submitted++;
    pthread_cond_signal(&stream->wake);
}

static sim_result refuse(struct sim_operation* operation, sim_result result) {
    free(operation->fences);
    operation->drop(operation);
    return result;
}

// A driver takes so many operations; the next call waits inside it until one has ended.
static void wait_for_room(const struct sim_stream* stream) {
    uint64_t limit = sim_machine_config()->queue;
    while (stream->submitted - stream->completed >= limit && !stream->stopping && !stream->context->error)
        sim_wait_progress_locked(SIM_FOREVER);
}

sim_result sim_submit_locked(struct sim_stream* stream, struct sim_operation* operation) {
    if (!operation) return SIM_OUT_OF_MEMORY;
    if (stream->capture) return sim_capture_record_locked(stream, operation);
    wait_for_room(stream);
    if (stream->context->error) return refuse(operation, stream->context->error);
    if (!stream->context->alive) return refuse(operation, SIM_CONTEXT_DESTROYED);
    sim_result implicit = sim_capture_check_implicit_locked(stream);
    if (implicit) return refuse(operation, implicit);
    if (!stream->started && !start(stream)) return refuse(operation, SIM_OPERATING_SYSTEM);
    if (!add_implicit_fences(stream, operation)) return refuse(operation, SIM_OUT_OF_MEMORY);
    enqueue(stream, operation);
    return SIM_OK;
}

sim_result sim_stream_synchronize_locked(struct sim_stream* stream) {
    uint64_t target = stream->submitted;
    while (stream->completed < target) sim_wait_progress_locked(SIM_FOREVER);
    return stream->context->error;
}

sim_result sim_context_synchronize(struct sim_context* context) {
    for (struct sim_stream* stream = context->streams; stream; stream = stream->next)
        sim_stream_synchronize_locked(stream);
    return context->error;
}

// ---- life -----------------------------------------------------------------------------------------------------------
static struct sim_stream* used_up(struct sim_context* context) {
    for (struct sim_stream* stream = context->streams; stream; stream = stream->next)
        if (stream->closing && (stream->ended || !stream->started)) return stream;
    return NULL;
}

static struct sim_stream* fresh(struct sim_context* context) {
    struct sim_stream* made = calloc(1, sizeof *made);
    if (!made || pthread_cond_init(&made->wake, NULL)) {
        free(made);
        return NULL;
    }
    made->context = context;
    made->next = context->streams;
    context->streams = made;
    return made;
}

static struct sim_stream* make(struct sim_context* context, enum sim_stream_role role) {
    struct sim_stream* made = used_up(context);
    if (!made) made = fresh(context);
    if (!made) return NULL;
    made->closing = made->started = made->ended = made->non_blocking = false;
    made->flags = 0;
    made->priority = 0;
    made->role = role;
    made->id = next_id++;
    return made;
}

sim_result sim_stream_create(struct sim_context* context, unsigned flags, bool non_blocking, int priority,
                             struct sim_stream** stream) {
    struct sim_stream* made = make(context, SIM_STREAM_PLAIN);
    if (!made || !sim_object_add_locked(made, SIM_STREAM)) return SIM_OUT_OF_MEMORY;
    made->flags = flags;
    made->non_blocking = non_blocking;
    made->priority = priority;
    *stream = made;
    return SIM_OK;
}

static void wake_to_end(struct sim_stream* stream) {
    sim_object_remove_locked(stream);
    pthread_cond_signal(&stream->wake);
    sim_progress_locked();  // it may be waiting for something other than an operation
}

sim_result sim_stream_destroy(struct sim_stream* stream) {
    if (stream->capture) sim_capture_leave_locked(stream);
    stream->closing = true;
    wake_to_end(stream);
    return SIM_OK;
}

static void retire(struct sim_stream* streams) {
    if (!streams) return;
    struct sim_stream* last = streams;
    while (last->next) last = last->next;
    last->next = retired;
    retired = streams;
}

void sim_streams_stop_of(struct sim_context* context) {
    for (struct sim_stream* stream = context->streams; stream; stream = stream->next) {
        if (stream->capture) sim_capture_abandon_locked(stream);
        stream->stopping = true;
        wake_to_end(stream);
    }
    for (struct sim_stream* stream = context->streams; stream; stream = stream->next)
        while (stream->started && !stream->ended) sim_wait_progress_locked(SIM_FOREVER);
    retire(context->streams);
    context->streams = NULL;
    context->legacy = NULL;
}

struct sim_stream* sim_stream_legacy(struct sim_context* context) {
    if (!context->legacy) context->legacy = make(context, SIM_STREAM_LEGACY);
    return context->legacy;
}

struct sim_stream* sim_stream_per_thread(struct sim_context* context) {
    for (struct sim_stream* stream = context->streams; stream; stream = stream->next)
        if (stream->role == SIM_STREAM_PER_THREAD && pthread_equal(stream->owner, pthread_self())) return stream;
    struct sim_stream* made = make(context, SIM_STREAM_PER_THREAD);
    if (made) made->owner = pthread_self();
    return made;
}
