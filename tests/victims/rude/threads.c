// SPDX-License-Identifier: Apache-2.0
//
// Threads: cancelled at any instant, with hardly any stack, very many at once, ended with a destructor that
// still calls the driver.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "rude.h"

// ---- cancelled --------------------------------------------------------------------------------------------------------

static atomic_uint cleaned;

static void clean(void* argument) {
    (void)argument;
    atomic_fetch_add(&cleaned, 1);
}

// As the driver's own calls are not made for it, a thread can be cancelled only between them.
static void* be_cancelled(void* argument) {
    int ignored;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &ignored);
    enter(0);
    pthread_cleanup_push(clean, NULL);
    for (;;) {
        use_device(29, 1000);
        pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &ignored);
        pthread_testcancel();
        pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &ignored);
    }
    pthread_cleanup_pop(0);
    return argument;
}

// Where cancellation may act at once a thread parked at a gate is cancelled there; here nothing of it is in the driver.
static void* be_cancelled_anywhere(void* argument) {
    int ignored;
    pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &ignored);
    pthread_cleanup_push(clean, NULL);
    for (volatile unsigned i = 0;; i++) continue;
    pthread_cleanup_pop(0);
    return argument;
}

static void cancel_one(void* (*body)(void*)) {
    pthread_t thread;
    void* result = NULL;
    unsigned before = atomic_load(&cleaned);
    must(pthread_create(&thread, NULL, body, NULL), "pthread_create");
    usleep((useconds_t)(rand() % 3000));
    must(pthread_cancel(thread), "pthread_cancel");
    must(pthread_join(thread, &result), "pthread_join");
    if (result != PTHREAD_CANCELED) fail("a thread was not cancelled");
    if (body == be_cancelled && atomic_load(&cleaned) == before) fail("a cancelled thread did not clean up");
}

static void cancels_once(void) {
    cancel_one(be_cancelled);
    cancel_one(be_cancelled_anywhere);
}

// ---- small, and many --------------------------------------------------------------------------------------------------

static pthread_key_t last_words;

static void call_once_more(void* value) {
    use_device((uint32_t)(uintptr_t)value, 100);  // after destructors of others may have run
}

static void* be_short(void* value) {
    enter(0);
    must(pthread_setspecific(last_words, value), "pthread_setspecific");
    use_device((uint32_t)(uintptr_t)value, 100);
    return NULL;
}

static void start_and_join(unsigned count, size_t stack) {
    pthread_t threads[count];
    pthread_attr_t attributes;
    if (last_words == 0) must(pthread_key_create(&last_words, call_once_more), "pthread_key_create");
    pthread_attr_init(&attributes);
    must(pthread_attr_setstacksize(&attributes, stack), "pthread_attr_setstacksize");
    for (unsigned i = 0; i < count; i++)
        must(pthread_create(&threads[i], &attributes, be_short, (void*)(uintptr_t)(i + 1)), "pthread_create");
    for (unsigned i = 0; i < count; i++) must(pthread_join(threads[i], NULL), "pthread_join");
    pthread_attr_destroy(&attributes);
}

// A page more than bare programs need on the simulated device.
static void small_once(void) {
    start_and_join(8, 24 << 10);
}

static const char* crowd(const char* argument) {
    start_and_join((unsigned)atoi(argument), 65536);
    return "ok";
}

const struct word thread_words[] = {{"crowd", crowd}, {0}};
const struct rude_storm thread_storms[] = {{"cancels", cancels_once}, {"small", small_once}, {0}};
