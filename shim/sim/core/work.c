// SPDX-License-Identifier: Apache-2.0
//
// What streams do besides kernels and events: copies, fills, host functions, waits for values.
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "context.h"
#include "landing.h"

enum { PAGES_BETWEEN_LOOKS = 16, POLL_NS = 200000, PATTERN_BYTES = 4096 /* a multiple of each unit */ };
enum { MADE_AT_ONCE = SIM_LANDING };

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14; an older kernel refuses it, and faults make the memory
#endif

static void drop(struct sim_operation* operation) {
    free(operation);
}

static void* make(size_t size, void (*run)(struct sim_operation*, struct sim_stream*)) {
    struct sim_operation* made = calloc(1, size);
    if (!made) return NULL;
    made->run = run;
    made->drop = drop;
    return made;
}

static void run_nothing(struct sim_operation* operation, struct sim_stream* stream) {
    (void)operation;
    (void)stream;
}

struct sim_operation* sim_empty_operation(void) {
    return make(sizeof(struct sim_operation), run_nothing);
}

// ---- copies and fills ---------------------------------------------------------------------------------------------
struct region {
    struct sim_operation operation;
    struct sim_rows to;
    struct sim_rows from;
    const struct sim_context* to_context;  // whose access counts; null: that of the stream
    const struct sim_context* from_context;
    size_t width;
    size_t height;
    uint32_t value;
    unsigned unit;
};

static size_t span(const struct sim_rows* rows, size_t width, size_t height) {
    return width && height ? rows->pitch * (height - 1) + width : 0;
}

#if defined(__SANITIZE_THREAD__)
// A program may race with a copy of its own device memory: that is for the program to see, not for our sanitizer.
__attribute__((no_sanitize("thread"))) static void move_bytes(char* to, const char* from, size_t size) {
    for (size_t i = 0; i < size; i++) ((volatile char*)to)[i] = ((const volatile char*)from)[i];
}
#else
static void move_bytes(char* to, const char* from, size_t size) {
    memmove(to, from, size);
}
#endif

struct pace {
    uint64_t started_ns;
    uint64_t bytes;
    unsigned pages;
    unsigned yield_at;
    bool to_device;
    const struct sim_landing* landing;
};

static void keep_pace(struct pace* pace, size_t bytes) {
    uint64_t limit = sim_machine_config()->copy_bps;
    pace->bytes += bytes;
    if (++pace->pages % PAGES_BETWEEN_LOOKS) return;
    if (pace->pages == pace->yield_at) {  // a copy is not atomic: kernels write between its pages
        pace->yield_at *= 16;             // few in a large one: on a busy machine each takes some milliseconds
        sched_yield();
    }
    if (!limit) return;
    uint64_t due = pace->started_ns + pace->bytes * 1000 / limit * 1000000, now = sim_now_ns();
    if (due > now + 1000000) sim_sleep_ms((unsigned)((due - now) / 1000000));
}

// A device's memory is there before it is written to. Page by page the kernel would take longer to make it than to copy.
static void make_memory(char* memory, size_t size) {
    uintptr_t begin = (uintptr_t)memory & ~(uintptr_t)(SIM_PAGE - 1);
    madvise((void*)begin, (uintptr_t)memory + size - begin, MADV_POPULATE_WRITE);
}

static void copy_row(char* to, const char* from, size_t width, struct pace* pace) {
    size_t landed = 0;  // bytes from the begin of the row on that are there already
    for (size_t done = 0; done < width;) {
        size_t part = width - done < SIM_PAGE ? width - done : SIM_PAGE;
        if (pace->to_device && done % MADE_AT_ONCE == 0 && width - done >= MADE_AT_ONCE) {
            if (sim_landing_copy(pace->landing, to + done, from + done, MADE_AT_ONCE))
                landed = done + MADE_AT_ONCE;
            else
                make_memory(to + done, MADE_AT_ONCE);
        }
        if (done >= landed) move_bytes(to + done, from + done, part);
        done += part;
        keep_pace(pace, part);
    }
}

static void copy_rows(const struct region* self, const struct sim_view* to, const struct sim_view* from,
                      const struct sim_landing* landing) {
    struct pace pace = {.started_ns = sim_now_ns(),
                        .yield_at = PAGES_BETWEEN_LOOKS,
                        .to_device = to->reservation != NULL,
                        .landing = landing};
    for (size_t row = 0; row < self->height; row++)
        copy_row((char*)to->memory + row * self->to.pitch, (const char*)from->memory + row * self->from.pitch,
                 self->width, &pace);
}

// One copy engine for each direction of the link: with a rate limit, the copies of all streams pass one after the other.
static pthread_mutex_t engine_in = PTHREAD_MUTEX_INITIALIZER, engine_out = PTHREAD_MUTEX_INITIALIZER;

static pthread_mutex_t* engine_between(const struct sim_view* to, const struct sim_view* from) {
    bool on_device = to->reservation && from->reservation, on_host = !to->reservation && !from->reservation;
    if (!sim_machine_config()->copy_bps || on_device || on_host) return NULL;
    return to->reservation ? &engine_in : &engine_out;
}

static void copy_over_link(const struct region* self, const struct sim_view* to, const struct sim_view* from,
                           const struct sim_landing* landing) {
    pthread_mutex_t* engine = engine_between(to, from);
    if (engine) pthread_mutex_lock(engine);
    copy_rows(self, to, from, landing);
    if (engine) pthread_mutex_unlock(engine);
}

static void run_copy(struct sim_operation* operation, struct sim_stream* stream) {
    const struct region* self = (struct region*)operation;
    size_t to_size = span(&self->to, self->width, self->height),
           from_size = span(&self->from, self->width, self->height);
    if (!to_size) return;
    const struct sim_context* to_context = self->to_context ? self->to_context : stream->context;
    const struct sim_context* from_context = self->from_context ? self->from_context : stream->context;
    sim_lock();
    struct sim_view to = sim_view_take_locked(to_context, self->to.address, to_size, true);
    struct sim_view from = sim_view_take_locked(from_context, self->from.address, from_size, false);
    struct sim_landing landing = sim_landing_take_locked(&to, self->to.address, to_size);
    sim_unlock();
    bool legal = to.memory && from.memory;
    if (legal) copy_over_link(self, &to, &from, &landing);
    sim_landing_give_back(&landing);
    sim_lock();
    if (!legal) sim_context_fail(stream->context, SIM_ILLEGAL_ADDRESS);
    sim_view_give_back_locked(&to);
    sim_view_give_back_locked(&from);
    sim_unlock();
}

// The values come from a pattern of the simulator's own: another stream may write to the row at the same time.
static void fill_row(char* to, const struct region* self) {
    char pattern[PATTERN_BYTES];
    size_t width = self->width - self->width % self->unit;
    size_t most = width < sizeof pattern ? width : sizeof pattern;
    for (size_t at = 0; at < most; at += self->unit) memcpy(pattern + at, &self->value, self->unit);
    for (size_t done = 0; done < width; done += most) {
        if (width - done < most) most = width - done;
        move_bytes(to + done, pattern, most);
    }
}

static void run_fill(struct sim_operation* operation, struct sim_stream* stream) {
    const struct region* self = (struct region*)operation;
    size_t size = span(&self->to, self->width, self->height);
    if (!size) return;
    sim_lock();
    struct sim_view to = sim_view_take_locked(stream->context, self->to.address, size, true);
    sim_unlock();
    for (size_t row = 0; to.memory && row < self->height; row++) fill_row(to.memory + row * self->to.pitch, self);
    sim_lock();
    if (!to.memory) sim_context_fail(stream->context, SIM_ILLEGAL_ADDRESS);
    sim_view_give_back_locked(&to);
    sim_unlock();
}

struct sim_operation* sim_copy_operation(struct sim_rows to, struct sim_rows from, size_t width, size_t height) {
    struct region* made = make(sizeof *made, run_copy);
    if (!made) return NULL;
    made->to = to;
    made->from = from;
    made->width = width;
    made->height = height;
    return &made->operation;
}

void sim_copy_between(struct sim_operation* copy, const struct sim_context* to, const struct sim_context* from) {
    ((struct region*)copy)->to_context = to;
    ((struct region*)copy)->from_context = from;
}

struct sim_operation* sim_fill_operation(struct sim_rows to, uint32_t value, unsigned unit, size_t width,
                                         size_t height) {
    struct region* made = make(sizeof *made, run_fill);
    if (!made) return NULL;
    made->to = to;
    made->value = value;
    made->unit = unit;
    made->width = width;
    made->height = height;
    return &made->operation;
}

// ---- host functions -----------------------------------------------------------------------------------------------
struct host_call {
    struct sim_operation operation;
    void (*function)(void*);
    sim_status_callback callback;
    void* stream;
    void* argument;
};

static void run_host(struct sim_operation* operation, struct sim_stream* stream) {
    const struct host_call* self = (struct host_call*)operation;
    (void)stream;
    if (self->function)
        self->function(self->argument);
    else
        self->callback(self->stream, 0, self->argument);
}

struct sim_operation* sim_host_operation(void (*function)(void*), void* argument) {
    struct host_call* made = make(sizeof *made, run_host);
    if (!made) return NULL;
    made->function = function;
    made->argument = argument;
    return &made->operation;
}

struct sim_operation* sim_callback_operation(sim_status_callback function, void* stream, void* argument) {
    struct host_call* made = make(sizeof *made, run_host);
    if (!made) return NULL;
    made->callback = function;
    made->stream = stream;
    made->argument = argument;
    return &made->operation;
}

// ---- values in memory ---------------------------------------------------------------------------------------------
struct value_operation {
    struct sim_operation operation;
    uintptr_t address;
    uint64_t value;
    enum sim_comparison how;
    bool wide;
};

static bool satisfied(const struct value_operation* self, uint64_t seen) {
    switch (self->how) {
        case SIM_COMPARE_GEQ:
            return self->wide ? (int64_t)(seen - self->value) >= 0 : (int32_t)(seen - self->value) >= 0;
        case SIM_COMPARE_EQ:
            return seen == self->value;
        case SIM_COMPARE_AND:
            return (seen & self->value) != 0;
        case SIM_COMPARE_NOR:
            return ~(seen | self->value) != 0;
    }
    return true;
}

static uint64_t load(const char* memory, bool wide) {
    return wide ? __atomic_load_n((const uint64_t*)memory, __ATOMIC_ACQUIRE)
                : __atomic_load_n((const uint32_t*)memory, __ATOMIC_ACQUIRE);
}

static bool still_waiting(const struct value_operation* self, struct sim_stream* stream) {
    struct sim_view view = sim_view_take_locked(stream->context, self->address, self->wide ? 8 : 4, false);
    if (!view.memory) {
        sim_context_fail(stream->context, SIM_ILLEGAL_ADDRESS);
        return false;
    }
    bool waiting = !satisfied(self, load(view.memory, self->wide)) && !stream->stopping;
    sim_view_give_back_locked(&view);
    return waiting;
}

// Polls: the value may be written by a kernel, by the host, or by another process, and none of them tells us.
static void run_wait_value(struct sim_operation* operation, struct sim_stream* stream) {
    sim_lock();
    while (still_waiting((struct value_operation*)operation, stream)) sim_wait_progress_locked(sim_now_ns() + POLL_NS);
    sim_unlock();
}

static void run_write_value(struct sim_operation* operation, struct sim_stream* stream) {
    const struct value_operation* self = (struct value_operation*)operation;
    sim_lock();
    struct sim_view view = sim_view_take_locked(stream->context, self->address, self->wide ? 8 : 4, true);
    if (!view.memory)
        sim_context_fail(stream->context, SIM_ILLEGAL_ADDRESS);
    else if (self->wide)
        __atomic_store_n((uint64_t*)view.memory, self->value, __ATOMIC_RELEASE);
    else
        __atomic_store_n((uint32_t*)view.memory, (uint32_t)self->value, __ATOMIC_RELEASE);
    sim_view_give_back_locked(&view);
    sim_unlock();
}

static struct sim_operation* value_operation(uintptr_t address, uint64_t value, bool wide, bool write) {
    struct value_operation* made = make(sizeof *made, write ? run_write_value : run_wait_value);
    if (!made) return NULL;
    made->address = address;
    made->value = value;
    made->wide = wide;
    return &made->operation;
}

struct sim_operation* sim_wait_value_operation(uintptr_t address, uint64_t value, bool wide, enum sim_comparison how) {
    struct sim_operation* made = value_operation(address, value, wide, false);
    if (made) ((struct value_operation*)made)->how = how;
    return made;
}

struct sim_operation* sim_write_value_operation(uintptr_t address, uint64_t value, bool wide) {
    return value_operation(address, value, wide, true);
}

// ---- stream-ordered frees -----------------------------------------------------------------------------------------
struct free_operation {
    struct sim_operation operation;
    uint64_t id;
    uintptr_t address;
};

static struct sim_allocation* to_free(const struct sim_operation* operation) {
    const struct free_operation* self = (const struct free_operation*)operation;
    struct sim_allocation* allocation = sim_allocation_find(self->address);
    return allocation && allocation->id == self->id ? allocation : NULL;
}

static void run_free(struct sim_operation* operation, struct sim_stream* stream) {
    (void)stream;
    sim_lock();
    struct sim_allocation* allocation = to_free(operation);
    if (allocation) sim_allocation_free(allocation);
    sim_unlock();
}

// Its context is destroyed before it came to run: pool memory would stay for good.
static void drop_free(struct sim_operation* operation) {
    struct sim_allocation* allocation = to_free(operation);
    if (allocation && !allocation->context->alive) sim_allocation_free(allocation);
    drop(operation);
}

struct sim_operation* sim_free_operation(struct sim_allocation* allocation) {
    struct free_operation* made = make(sizeof *made, run_free);
    if (!made) return NULL;
    made->operation.drop = drop_free;
    made->id = allocation->id;
    made->address = allocation->range.start;
    return &made->operation;
}
