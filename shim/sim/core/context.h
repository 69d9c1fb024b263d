// SPDX-License-Identifier: Apache-2.0
//
// Contexts, streams, events, and the work that runs on streams.
#ifndef GCR_SIM_CONTEXT_H
#define GCR_SIM_CONTEXT_H

#include <pthread.h>

#include "memory.h"

// ---- devices of this process ----------------------------------------------------------------------------------
unsigned sim_device_count(void);
unsigned sim_device_real(unsigned ordinal);      // index in the machine
unsigned sim_device_ordinal(unsigned real);      // the inverse
void sim_device_remap(const unsigned* real);     // after a restore on other devices; sim_device_count() long
void sim_devices_show(const unsigned* real, unsigned count);
bool sim_device_was_shown(unsigned real);  // when this process began
bool sim_device_reaches(unsigned ordinal, unsigned peer);  // the peer's memory, or its own

// ---- contexts ---------------------------------------------------------------------------------------------------
struct sim_slab;
struct sim_context {
    unsigned device;
    bool primary;
    bool alive;
    unsigned flags;
    unsigned retained;     // primary contexts: how often
    unsigned attached;     // by cuCtxAttach, and not detached
    uint32_t peers;        // bit d: may reach plain allocations of device d
    sim_result error;      // sticky
    uint64_t id;
    struct sim_physical* physical;  // what the context itself costs
    struct sim_stream* legacy;
    struct sim_stream* streams;     // all of them, legacy included
    struct sim_slab* slabs;
    struct sim_event* events;
    struct sim_module* modules;
    struct sim_context* next;
};

struct sim_context* sim_context_current(void);  // of the calling thread; may be destroyed
sim_result sim_context_usable(struct sim_context** context);  // current, alive, without sticky error
void sim_context_set_current(struct sim_context* context);
sim_result sim_context_push(struct sim_context* context);
sim_result sim_context_pop(struct sim_context** context);
sim_result sim_context_create(unsigned device, unsigned flags, struct sim_context** context);
sim_result sim_context_destroy(struct sim_context* context);
sim_result sim_primary_retain(unsigned device, struct sim_context** context);
sim_result sim_primary_release(unsigned device);
sim_result sim_primary_reset(unsigned device);
struct sim_context* sim_primary_of(unsigned device);
struct sim_context* sim_contexts(void);
void sim_context_save(struct sim_context* context);  // gives the context's own memory back
sim_result sim_context_recreate(struct sim_context* context);
sim_result sim_context_synchronize(struct sim_context* context);

// ---- streams ------------------------------------------------------------------------------------------------------
enum sim_stream_role { SIM_STREAM_PLAIN, SIM_STREAM_LEGACY, SIM_STREAM_PER_THREAD };

struct sim_capture;
struct sim_stream {
    struct sim_context* context;
    struct sim_stream* next;  // of the same context
    enum sim_stream_role role;
    bool non_blocking;  // does not synchronise with the legacy stream
    bool closing;       // destroyed by the program: ends when its work is done
    bool stopping;      // its context goes: drops what is queued, then ends
    bool started;       // has a thread
    bool ended;         // its thread is gone
    bool running;       // its thread works on an operation right now
    unsigned flags;
    int priority;
    uint64_t id;
    uint64_t submitted;
    uint64_t completed;
    pthread_t thread;
    pthread_cond_t wake;
    struct sim_operation* head;
    struct sim_operation* tail;
    struct sim_capture* capture;
    uint64_t captured;  // operations and joins of the capture it takes part in
    bool unjoined;      // captured something its capture's origin does not wait for
    pthread_t owner;  // of a per-thread stream
};

// An operation waits for its fences, then runs on the stream's thread without sim_lock.
struct sim_fence {
    struct sim_stream* stream;
    uint64_t sequence;
};

struct sim_operation {
    void (*run)(struct sim_operation* operation, struct sim_stream* stream);
    void (*drop)(struct sim_operation* operation);  // frees the operation and what it owns; with sim_lock
    struct sim_operation* next;
    struct sim_fence* fences;
    unsigned fence_count;
    bool graph_only;
    const struct sim_function* function;  // of a kernel; null: something else
};

sim_result sim_stream_create(struct sim_context* context, unsigned flags, bool non_blocking, int priority,
                             struct sim_stream** stream);
sim_result sim_stream_destroy(struct sim_stream* stream);
void sim_streams_stop_of(struct sim_context* context);
struct sim_stream* sim_stream_per_thread(struct sim_context* context);
struct sim_stream* sim_stream_legacy(struct sim_context* context);
sim_result sim_submit_locked(struct sim_stream* stream, struct sim_operation* operation);  // takes the operation
sim_result sim_stream_synchronize_locked(struct sim_stream* stream);
bool sim_stream_idle_locked(const struct sim_stream* stream);
bool sim_wait_in_stream_locked(struct sim_stream* stream);  // false: the stream is being stopped
void sim_context_fail(struct sim_context* context, sim_result error);

// ---- events -------------------------------------------------------------------------------------------------------
struct sim_event {
    struct sim_context* context;
    struct sim_event* next;
    unsigned flags;
    unsigned references;
    bool destroyed;
    uint64_t recorded;   // records asked for so far
    uint64_t completed;  // the newest one that happened
    uint64_t time_ns;
    bool shared;              // the records are those of the signal, and not the two above
    bool opened;              // made by another process
    struct sim_entry signal;
    struct sim_stream* captured_in;
    uint64_t captured_at;
    struct sim_capture* capture;  // recorded inside a capture, and only there
};

sim_result sim_event_create(struct sim_context* context, unsigned flags, struct sim_event** event);
void sim_event_unreference(struct sim_event* event);
void sim_event_destroy(struct sim_event* event);
void sim_events_destroy_of(struct sim_context* context);
sim_result sim_event_record(struct sim_event* event, struct sim_stream* stream);
sim_result sim_event_wait(struct sim_stream* stream, struct sim_event* event);
bool sim_event_done(const struct sim_event* event);
sim_result sim_event_synchronize(struct sim_event* event);
sim_result sim_event_share(struct sim_event* event);  // other processes may open its signal from here on
sim_result sim_event_open(struct sim_context* context, unsigned flags, const struct sim_entry* signal,
                          struct sim_event** event);

// ---- work ---------------------------------------------------------------------------------------------------------
struct sim_rows {  // a region: `height` rows of `width` bytes, `pitch` bytes apart
    uintptr_t address;
    size_t pitch;
};

struct sim_operation* sim_copy_operation(struct sim_rows to, struct sim_rows from, size_t width, size_t height);
// A copy in which each side is reached as its own context reaches it. Null: as the stream's.
void sim_copy_between(struct sim_operation* copy, const struct sim_context* to, const struct sim_context* from);
struct sim_operation* sim_fill_operation(struct sim_rows to, uint32_t value, unsigned unit, size_t width,
                                         size_t height);
struct sim_operation* sim_host_operation(void (*function)(void*), void* argument);
typedef void (*sim_status_callback)(void* stream, int status, void* argument);
struct sim_operation* sim_callback_operation(sim_status_callback function, void* stream, void* argument);
enum sim_comparison { SIM_COMPARE_GEQ, SIM_COMPARE_EQ, SIM_COMPARE_AND, SIM_COMPARE_NOR };
struct sim_operation* sim_wait_value_operation(uintptr_t address, uint64_t value, bool wide, enum sim_comparison how);
struct sim_operation* sim_write_value_operation(uintptr_t address, uint64_t value, bool wide);
struct sim_operation* sim_free_operation(struct sim_allocation* allocation);
struct sim_operation* sim_empty_operation(void);

#endif
