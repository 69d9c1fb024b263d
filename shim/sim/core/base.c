// SPDX-License-Identifier: Apache-2.0
#include "base.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static pthread_mutex_t core = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t progress;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void make_progress(void) {
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&progress, &attributes);
    pthread_condattr_destroy(&attributes);
}

void sim_lock(void) {
    pthread_once(&once, make_progress);
    pthread_mutex_lock(&core);
}

void sim_unlock(void) {
    pthread_mutex_unlock(&core);
}

void sim_progress_locked(void) {
    pthread_cond_broadcast(&progress);
}

bool sim_wait_progress_locked(uint64_t deadline_ns) {
    if (deadline_ns == SIM_FOREVER) {
        pthread_cond_wait(&progress, &core);
        return true;
    }
    struct timespec until = {(time_t)(deadline_ns / 1000000000u), (long)(deadline_ns % 1000000000u)};
    return pthread_cond_timedwait(&progress, &core, &until) != ETIMEDOUT;
}

void sim_wait_locked(void* condition) {
    pthread_cond_wait(condition, &core);
}

uint64_t sim_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void sim_sleep_ms(unsigned milliseconds) {
    struct timespec left = {milliseconds / 1000, (long)(milliseconds % 1000) * 1000000};
    while (nanosleep(&left, &left) && errno == EINTR) {
    }
}

// ---- sorted ranges ------------------------------------------------------------------------------------------------
size_t sim_ranges_index(const struct sim_ranges* ranges, uintptr_t address) {
    size_t low = 0, high = ranges->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const struct sim_range* item = ranges->items[middle];
        if (item->start + item->size <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

void* sim_ranges_find(const struct sim_ranges* ranges, uintptr_t address) {
    size_t index = sim_ranges_index(ranges, address);
    if (index == ranges->count || ranges->items[index]->start > address) return NULL;
    return ranges->items[index];
}

bool sim_ranges_overlap(const struct sim_ranges* ranges, uintptr_t start, size_t size) {
    size_t index = sim_ranges_index(ranges, start);
    return index < ranges->count && ranges->items[index]->start < start + size;
}

static bool grow(struct sim_ranges* ranges) {
    size_t capacity = ranges->capacity ? ranges->capacity * 2 : 16;
    struct sim_range** items = realloc(ranges->items, capacity * sizeof *items);
    if (!items) return false;
    ranges->items = items;
    ranges->capacity = capacity;
    return true;
}

bool sim_ranges_insert(struct sim_ranges* ranges, void* item) {
    struct sim_range* range = item;
    if (ranges->count == ranges->capacity && !grow(ranges)) return false;
    size_t index = sim_ranges_index(ranges, range->start);
    memmove(&ranges->items[index + 1], &ranges->items[index], (ranges->count - index) * sizeof *ranges->items);
    ranges->items[index] = range;
    ranges->count++;
    return true;
}

void sim_ranges_remove(struct sim_ranges* ranges, const void* item) {
    const struct sim_range* range = item;
    size_t index = sim_ranges_index(ranges, range->start);
    if (index == ranges->count || ranges->items[index] != range) return;
    ranges->count--;
    memmove(&ranges->items[index], &ranges->items[index + 1], (ranges->count - index) * sizeof *ranges->items);
}

// ---- live objects -------------------------------------------------------------------------------------------------
// Kept as one-byte ranges: objects do not overlap, so the same sorted structure serves.
struct object {
    struct sim_range range;
    enum sim_kind kind;
};

static struct sim_ranges objects;

bool sim_object_add_locked(const void* object, enum sim_kind kind) {
    struct object* entry = malloc(sizeof *entry);
    if (!entry) return false;
    *entry = (struct object){{(uintptr_t)object, 1}, kind};
    if (sim_ranges_insert(&objects, entry)) return true;
    free(entry);
    return false;
}

void sim_object_remove_locked(const void* object) {
    struct object* entry = sim_ranges_find(&objects, (uintptr_t)object);
    if (!entry) return;
    sim_ranges_remove(&objects, entry);
    free(entry);
}

bool sim_object_is_locked(const void* object, enum sim_kind kind) {
    const struct object* entry = sim_ranges_find(&objects, (uintptr_t)object);
    return entry && entry->kind == kind;
}
