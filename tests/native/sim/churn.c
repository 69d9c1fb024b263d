// SPDX-License-Identifier: Apache-2.0
//
// Several threads launch, copy, map, unmap, allocate and free at once while this process is locked, checkpointed,
// restored and unlocked by a thread of its own. For the sanitizers, and for the bytes: every thread owns a buffer whose
// contents it can foretell. argv[1]: the kernels module.
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int (*call)();  // every entry point, by its C calling convention

enum { THREADS = 4, ROUNDS = 60, CYCLES = 12, WORDS = 4096, GRANULE = 2 << 20 };

static void* driver;
static void* module;
static atomic_int working = THREADS;

static int invoke(const char* name, call function, int result) {
    (void)function;
    if (!result) return 0;
    fprintf(stderr, "%s gave %d\n", name, result);
    abort();
}

#define CU(name) ((call)dlsym(driver, #name))
#define DO(name, ...) invoke(#name, CU(name), CU(name)(__VA_ARGS__))

struct properties {
    int type, requested, location_type, location_id;
    void* win32;
    char flags[8];
};

struct access {
    int location_type, location_id, flags;
};

static void launch(const char* name, void* stream, uint64_t pointer, uint64_t words, uint64_t value) {
    void* function;
    void* params[] = {&pointer, &words, &value};
    DO(cuModuleGetFunction, &function, module, name);
    DO(cuLaunchKernel, function, 1, 1, 1, 1, 1, 1, 0, stream, params, (void**)NULL);
}

static uint64_t map_some(void) {
    struct properties wanted = {1, 1, 1, 0, NULL, {0}};
    struct access both = {1, 0, 3};
    uint64_t address = 0, handle = 0;
    DO(cuMemAddressReserve, &address, (size_t)GRANULE, (size_t)0, (uint64_t)0, (uint64_t)0);
    DO(cuMemCreate, &handle, (size_t)GRANULE, &wanted, (uint64_t)0);
    DO(cuMemMap, address, (size_t)GRANULE, (size_t)0, handle, (uint64_t)0);
    DO(cuMemRelease, handle);
    DO(cuMemSetAccess, address, (size_t)GRANULE, &both, (size_t)1);
    return address;
}

static void unmap_it(uint64_t address) {
    DO(cuMemUnmap, address, (size_t)GRANULE);
    DO(cuMemAddressFree, address, (size_t)GRANULE);
}

static void* churn(void* context) {
    static _Thread_local uint64_t host[WORDS];
    void* stream;
    uint64_t own = 0, scratch = 0, expected = 0;
    DO(cuCtxSetCurrent, context);
    DO(cuStreamCreate, &stream, 1);
    DO(cuMemAlloc_v2, &own, (size_t)(WORDS * 8));
    DO(cuMemsetD8_v2, own, (unsigned char)0, (size_t)(WORDS * 8));
    for (int round = 0; round < ROUNDS; round++) {
        launch("add", stream, own, WORDS, (uint64_t)round);
        expected += (uint64_t)round;
        DO(cuMemAlloc_v2, &scratch, (size_t)(1000 + round * 37));
        DO(cuMemsetD8Async, scratch, (unsigned char)round, (size_t)1000, stream);
        if (round % 8 == 0) {
            // Not across a checkpoint: mapped exportable memory would doom it, as on the real driver.
            DO(cuMemcpyDtoHAsync_v2, (void*)host, own, (size_t)(WORDS * 8), stream);
            DO(cuStreamSynchronize, stream);
            for (int i = 0; i < WORDS; i++)
                if (host[i] != expected) abort();
        }
        DO(cuMemFree_v2, scratch);
    }
    DO(cuStreamSynchronize, stream);
    DO(cuMemFree_v2, own);
    DO(cuStreamDestroy_v2, stream);
    atomic_fetch_sub(&working, 1);
    return NULL;
}

static void cycle(void) {
    DO(cuCheckpointProcessLock, getpid(), (void*)NULL);
    DO(cuCheckpointProcessCheckpoint, getpid(), (void*)NULL);
    DO(cuCheckpointProcessRestore, getpid(), (void*)NULL);
    DO(cuCheckpointProcessUnlock, getpid(), (void*)NULL);
}

int main(int count, char** arguments) {
    if (count != 2 || !(driver = dlopen("libcuda.so.1", RTLD_NOW))) return 2;
    void* context;
    pthread_t threads[THREADS];
    DO(cuInit, 0);
    DO(cuDevicePrimaryCtxRetain, &context, 0);
    DO(cuCtxSetCurrent, context);
    DO(cuModuleLoad, &module, arguments[1]);
    for (int i = 0; i < 20; i++) unmap_it(map_some());
    for (int i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, churn, context);
    int cycles = 0;
    while (atomic_load(&working) && cycles < CYCLES) {
        cycle();
        cycles++;
    }
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    DO(cuDevicePrimaryCtxRelease_v2, 0);
    printf("%d cycles beside %d threads\n", cycles, THREADS);
    return cycles ? 0 : 1;
}
