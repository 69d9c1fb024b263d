// SPDX-License-Identifier: Apache-2.0
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "rude.h"

enum { kMost = 16 };

static struct running {
    const struct rude_storm* what;
    pthread_t thread;
    atomic_bool over;
    atomic_ulong times;
} running[kMost];

static void* blow(void* argument) {
    struct running* self = argument;
    enter(0);
    while (!atomic_load(&self->over)) {
        self->what->once();
        atomic_fetch_add(&self->times, 1);
        usleep(300);
    }
    return NULL;
}

static const struct rude_storm* known(const char* name) {
    const struct rude_storm* files[] = {signal_storms, process_storms, thread_storms, limit_storms, memory_storms};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        for (const struct rude_storm* each = files[i]; each->name; each++)
            if (strcmp(each->name, name) == 0) return each;
    return NULL;
}

const char* storm(const char* name) {
    for (struct running* slot = running; slot < running + kMost; slot++) {
        if (slot->what) continue;
        if (!(slot->what = known(name))) return "what?";
        atomic_store(&slot->over, false);
        atomic_store(&slot->times, 0);
        must(pthread_create(&slot->thread, NULL, blow, slot), "pthread_create");
        while (atomic_load(&slot->times) == 0) usleep(1000);
        return "ok";
    }
    return "too many";
}

// How often is for the error stream: it depends on time.
const char* calm(const char* name) {
    for (struct running* slot = running; slot < running + kMost; slot++) {
        if (!slot->what || strcmp(slot->what->name, name) != 0) continue;
        atomic_store(&slot->over, true);
        pthread_join(slot->thread, NULL);
        slot->what = NULL;
        fprintf(stderr, "rude: %s, %lu times\n", name, atomic_load(&slot->times));
        return "calm";
    }
    return "what?";
}
