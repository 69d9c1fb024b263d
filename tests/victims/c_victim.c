// SPDX-License-Identifier: Apache-2.0
//
// Threads x streams over the driver API, reached by dlopen as every framework reaches it. No vendor header is needed.
//
//   c_victim [THREADS [STREAMS [STEPS|hold [PAUSE_US]]]]
//
// `hold`: what each thread does says a line on standard input, see dialogue.py. Each stream owns one array of equal words and a model of it on the host. Prints one line that is the same for every
// run with the same arguments; exits 1 and says where on the first word that is wrong.
#include <dlfcn.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "hold.h"

enum { kWords = 64 * 1024, kMaxThreads = 64, kMaxStreams = 16, kReallocateEvery = 8, kLookMs = 50 };

typedef unsigned long long device_pointer;

static int (*cu_init)(unsigned);
static int (*device_get)(int*, int);
static int (*context_retain)(void**, int);
static int (*context_set)(void*);
static int (*stream_create)(void**, unsigned);
static int (*stream_synchronize)(void*);
static int (*mem_alloc)(device_pointer*, size_t);
static int (*mem_free)(device_pointer);
static int (*memset_async)(device_pointer, unsigned, size_t, void*);
static int (*copy_async)(device_pointer, device_pointer, size_t, void*);
static int (*download)(void*, device_pointer, size_t);

static const struct {
    const char* name;
    void* slot;
} kCalls[] = {
    {"cuInit", &cu_init},
    {"cuDeviceGet", &device_get},
    {"cuDevicePrimaryCtxRetain", &context_retain},
    {"cuCtxSetCurrent", &context_set},
    {"cuStreamCreate", &stream_create},
    {"cuStreamSynchronize", &stream_synchronize},
    {"cuMemAlloc_v2", &mem_alloc},
    {"cuMemFree_v2", &mem_free},
    {"cuMemsetD32Async", &memset_async},
    {"cuMemcpyDtoDAsync_v2", &copy_async},
    {"cuMemcpyDtoH_v2", &download},
};

struct lane {
    void* stream;
    device_pointer array;
    uint32_t value;
};

struct worker {
    pthread_t thread;
    unsigned number, steps;
    _Atomic unsigned done;  // read by the main thread, to show that it goes on
    uint64_t digest;
};

static void* context;
static _Atomic int enough;  // set by the main thread: standard input has ended
static unsigned streams = 3, steps = 200, pause_us = 0;

static void must(int result, const char* call) {
    if (result == 0) return;
    fprintf(stderr, "c_victim: %s returned %d\n", call, result);
    exit(1);
}

static void resolve_driver(void) {
    void* library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) {
        fprintf(stderr, "c_victim: %s\n", dlerror());
        exit(77);
    }
    for (size_t i = 0; i < sizeof kCalls / sizeof *kCalls; i++) {
        *(void**)kCalls[i].slot = dlsym(library, kCalls[i].name);
        must(*(void**)kCalls[i].slot == NULL, kCalls[i].name);
    }
}

static uint32_t next_random(uint64_t* state) {  // SplitMix64
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (uint32_t)(z >> 32);
}

static void open_lane(struct lane* lane) {
    must(stream_create(&lane->stream, 1), "cuStreamCreate");
    must(mem_alloc(&lane->array, kWords * 4), "cuMemAlloc");
    must(memset_async(lane->array, 0, kWords, lane->stream), "cuMemsetD32Async");
    lane->value = 0;
}

static void overwrite(struct lane* lane, uint32_t value) {
    must(memset_async(lane->array, value, kWords, lane->stream), "cuMemsetD32Async");
    lane->value = value;
}

static void move_to_new_array(struct lane* lane) {
    device_pointer fresh;
    must(mem_alloc(&fresh, kWords * 4), "cuMemAlloc");
    must(copy_async(fresh, lane->array, kWords * 4, lane->stream), "cuMemcpyDtoDAsync");
    must(mem_free(lane->array), "cuMemFree");  // the driver's own wait for the copy is under test
    lane->array = fresh;
}

static uint64_t verify(const struct lane* lane, uint64_t digest, unsigned thread) {
    static _Thread_local uint32_t words[kWords];
    must(stream_synchronize(lane->stream), "cuStreamSynchronize");
    must(download(words, lane->array, sizeof words), "cuMemcpyDtoH");
    for (size_t i = 0; i < kWords; i++) {
        if (words[i] != lane->value) {
            fprintf(stderr, "c_victim: thread %u: word %zu is %08x, not %08x\n", thread, i, words[i], lane->value);
            exit(1);
        }
        digest = (digest ^ words[i]) * 0x100000001b3u;  // FNV-1a
    }
    return digest;
}

static void* run(void* argument) {
    struct worker* self = argument;
    struct lane lanes[kMaxStreams];
    uint64_t random = self->number;
    must(context_set(context), "cuCtxSetCurrent");
    for (unsigned i = 0; i < streams; i++) open_lane(&lanes[i]);
    for (unsigned step = 0; step < self->steps && !enough; step++, self->done = step) {
        struct lane* lane = &lanes[next_random(&random) % streams];
        overwrite(lane, next_random(&random));
        if (step % kReallocateEvery == 0) move_to_new_array(lane);
        if (pause_us) usleep(pause_us);
    }
    self->digest = 0xcbf29ce484222325u;
    for (unsigned i = 0; i < streams; i++) {
        self->digest = verify(&lanes[i], self->digest, self->number);
        must(mem_free(lanes[i].array), "cuMemFree");
    }
    return NULL;
}

static unsigned argument(int count, char** values, int index, unsigned otherwise, unsigned most) {
    unsigned long value = count > index ? strtoul(values[index], NULL, 10) : otherwise;
    return value > most ? most : (unsigned)value;
}

// A comma between the numbers of the threads; one number is that of all. Returns whether there is no end to it.
static int plan(struct worker* workers, unsigned threads, const char* much) {
    int endless = !strcmp(much, "on");
    for (unsigned i = 0; i < threads; i++) {
        const char* next = strchr(much, ',');
        workers[i].steps = endless ? UINT_MAX : (unsigned)strtoul(much, NULL, 10);
        if (next) much = next + 1;
    }
    return endless;
}

static unsigned total(const struct worker* workers, unsigned threads) {
    unsigned sum = 0;
    for (unsigned i = 0; i < threads; i++) sum += workers[i].done;
    return sum;
}

static int at_work(const struct worker* workers, unsigned threads) {
    for (unsigned i = 0; i < threads; i++)
        if (workers[i].done < workers[i].steps) return 1;
    return 0;
}

static void watch(struct worker* workers, unsigned threads, int endless) {
    while (!enough && at_work(workers, threads)) {
        fprintf(stderr, "step %u\n", total(workers, threads));
        if (endless)
            enough = over(kLookMs);
        else
            usleep(kLookMs * 1000);
    }
}

static void say_steps(const struct worker* workers, unsigned threads) {
    for (unsigned i = 0; i < threads; i++) printf("%s%u", i ? "," : "steps ", workers[i].done);
    putchar('\n');
}

int main(int count, char** values) {
    static struct worker workers[kMaxThreads];
    int hold = count > 3 && !strcmp(values[3], "hold");
    unsigned threads = argument(count, values, 1, 4, kMaxThreads);
    streams = argument(count, values, 2, streams, kMaxStreams);
    steps = argument(count, values, 3, steps, 1u << 30);
    pause_us = argument(count, values, 4, pause_us, 1000000);
    int device;
    resolve_driver();
    must(cu_init(0), "cuInit");
    must(device_get(&device, 0), "cuDeviceGet");
    must(context_retain(&context, device), "cuDevicePrimaryCtxRetain");
    for (unsigned i = 0; i < threads; i++) workers[i].steps = steps;
    int endless = hold && plan(workers, threads, held());
    for (unsigned i = 0; i < threads; i++) {
        workers[i].number = i + 1;
        must(pthread_create(&workers[i].thread, NULL, run, &workers[i]), "pthread_create");
    }
    uint64_t digest = 0;
    if (hold) watch(workers, threads, endless);
    for (unsigned i = 0; i < threads; i++) {
        pthread_join(workers[i].thread, NULL);
        digest = digest * 31 + workers[i].digest;
    }
    if (hold) say_steps(workers, threads);
    printf("verified digest %016" PRIx64 "\n", digest);
    return 0;
}
