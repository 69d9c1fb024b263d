// SPDX-License-Identifier: Apache-2.0
//
// Linked to the HIP runtime, as compilers link: by versioned symbols, its kernels in the program and registered before
// main. Threads x streams, each with an array from hipMalloc and one that it maps itself. No vendor header is needed.
//
//   hip_victim [--interactive] [THREADS [STEPS [PAUSE_US]]]
//
// Build with -DKERNELS='"kernels.so"'. Prints one line that is the same for every run with the same arguments; with
// --interactive `ready` instead, then such a line after one more round of steps for every line it reads.
#include <inttypes.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "abi/hip.h"

enum { kWords = 64 * 1024, kBytes = kWords * 8, kMaxThreads = 16 };

extern hipError_t hipSetDevice(int device);
extern hipError_t hipGetDeviceCount(int* count);
extern hipError_t hipGetDevicePropertiesR0600(hipDeviceProp_t* properties, int device);
extern hipError_t hipMalloc(void** pointer, size_t size);
extern hipError_t hipFree(void* pointer);
extern hipError_t hipMemcpy(void* to, const void* from, size_t size, hipMemcpyKind kind);
extern hipError_t hipMemcpyAsync(void* to, const void* from, size_t size, hipMemcpyKind kind, hipStream_t stream);
extern hipError_t hipStreamCreateWithFlags(hipStream_t* stream, unsigned int flags);
extern hipError_t hipStreamSynchronize(hipStream_t stream);
extern hipError_t hipMemGetAllocationGranularity(size_t* out, const hipMemAllocationProp* wanted, unsigned int option);
extern hipError_t hipMemAddressReserve(void** out, size_t size, size_t align, void* hint, unsigned long long flags);
extern hipError_t hipMemCreate(hipMemGenericAllocationHandle_t* out, size_t size, const hipMemAllocationProp* wanted,
                               unsigned long long flags);
extern hipError_t hipMemMap(void* at, size_t size, size_t offset, hipMemGenericAllocationHandle_t handle,
                            unsigned long long flags);
extern hipError_t hipMemSetAccess(void* at, size_t size, const hipMemAccessDesc* wanted, size_t count);
extern hipError_t hipLaunchKernel(const void* function, dim3 grid, dim3 block, void** params, size_t shared,
                                  hipStream_t stream);
extern void** __hipRegisterFatBinary(const void* data);
extern void __hipRegisterFunction(void** modules, const void* function, char* device, const char* name, unsigned limit,
                                  void* tid, void* bid, void* block, void* grid, int* size);
extern void __hipUnregisterFatBinary(void** modules);

// ---- what a compiler puts into a program ----------------------------------------------------------------------------
__asm__(".section .hip_fatbin,\"a\"\n.balign 4096\nfat_binary:\n.incbin \"" KERNELS "\"\n.previous\n");
extern const char fat_binary[];

static const struct {
    uint32_t magic, version;
    const void* image;
    void* unused;
} fat_binary_wrapper = {0x48495046, 1, fat_binary, NULL};

static void fill(void) {}  // host stubs: their addresses name the kernels
static void add(void) {}

static void** modules;

__attribute__((constructor)) static void register_kernels(void) {
    modules = __hipRegisterFatBinary(&fat_binary_wrapper);
    __hipRegisterFunction(modules, (void*)fill, "fill", "fill", -1u, NULL, NULL, NULL, NULL, NULL);
    __hipRegisterFunction(modules, (void*)add, "add", "add", -1u, NULL, NULL, NULL, NULL, NULL);
}

__attribute__((destructor)) static void unregister_kernels(void) {
    __hipUnregisterFatBinary(modules);
}

// ---- the program ----------------------------------------------------------------------------------------------------
struct lane {
    unsigned number;
    hipStream_t stream;
    uint64_t* plain;
    uint64_t* mapped;
    uint64_t steps_done;
    uint64_t digest;
};

static unsigned steps = 50, pause_us = 0;

static void must(hipError_t result, const char* call) {
    if (result == hipSuccess) return;
    fprintf(stderr, "hip_victim: %s returned %d\n", call, result);
    exit(1);
}

static void launch(const void* kernel, uint64_t* array, uint64_t value, hipStream_t stream) {
    uint64_t words = kWords;
    void* params[] = {&array, &words, &value};
    dim3 one = {1, 1, 1};
    must(hipLaunchKernel(kernel, one, one, params, 0, stream), "hipLaunchKernel");
}

static uint64_t* map(void) {
    hipMemAllocationProp wanted = {.type = hipMemAllocationTypePinned, .location = {hipMemLocationTypeDevice, 0}};
    hipMemAccessDesc access = {{hipMemLocationTypeDevice, 0}, hipMemAccessFlagsProtReadWrite};
    hipMemGenericAllocationHandle_t handle;
    size_t granularity, size;
    void* at;
    must(hipMemGetAllocationGranularity(&granularity, &wanted, hipMemAllocationGranularityMinimum), "granularity");
    size = (kBytes + granularity - 1) / granularity * granularity;
    must(hipMemAddressReserve(&at, size, 0, NULL, 0), "hipMemAddressReserve");
    must(hipMemCreate(&handle, size, &wanted, 0), "hipMemCreate");
    must(hipMemMap(at, size, 0, handle, 0), "hipMemMap");
    must(hipMemSetAccess(at, size, &access, 1), "hipMemSetAccess");
    return at;
}

static void open_lane(struct lane* lane) {
    must(hipStreamCreateWithFlags(&lane->stream, hipStreamNonBlocking), "hipStreamCreateWithFlags");
    must(hipMalloc((void**)&lane->plain, kBytes), "hipMalloc");
    lane->mapped = map();
    launch((void*)fill, lane->plain, lane->number, lane->stream);
    launch((void*)fill, lane->mapped, lane->number + 100, lane->stream);
}

static void step(struct lane* lane, uint64_t number) {
    uint64_t* from = number % 2 ? lane->plain : lane->mapped;
    uint64_t* to = number % 2 ? lane->mapped : lane->plain;
    launch((void*)add, from, number, lane->stream);
    must(hipMemcpyAsync(to, from + kWords / 2, kBytes / 2, hipMemcpyDeviceToDevice, lane->stream), "hipMemcpyAsync");
}

static uint64_t digest(const uint64_t* array, uint64_t value) {
    static _Thread_local uint64_t words[kWords];
    must(hipMemcpy(words, array, kBytes, hipMemcpyDeviceToHost), "hipMemcpy");
    for (size_t i = 0; i < kWords; i++) value = (value ^ words[i]) * 0x100000001b3u;  // FNV-1a
    return value;
}

static void* run(void* argument) {
    struct lane* lane = argument;
    must(hipSetDevice(0), "hipSetDevice");
    if (!lane->stream) open_lane(lane);
    for (unsigned i = 0; i < steps; i++) {
        step(lane, lane->steps_done++);
        if (pause_us) usleep(pause_us);
    }
    must(hipStreamSynchronize(lane->stream), "hipStreamSynchronize");
    lane->digest = digest(lane->mapped, digest(lane->plain, 0xcbf29ce484222325u));
    return NULL;
}

static uint64_t play_round(struct lane* lanes, unsigned count) {
    pthread_t threads[kMaxThreads];
    uint64_t all = 0;
    for (unsigned i = 0; i < count; i++) must(pthread_create(&threads[i], NULL, run, &lanes[i]), "pthread_create");
    for (unsigned i = 0; i < count; i++) {
        pthread_join(threads[i], NULL);
        all = all * 31 + lanes[i].digest;
    }
    return all;
}

static void say(const char* text) {
    printf("%s\n", text);
    fflush(stdout);
}

static void say_digest(uint64_t value) {
    char text[32];
    snprintf(text, sizeof text, "digest %016" PRIx64, value);
    say(text);
}

static void serve(struct lane* lanes, unsigned count) {
    char line[256];
    say("ready");
    while (fgets(line, sizeof line, stdin)) say_digest(play_round(lanes, count));
}

int main(int count, char** values) {
    static struct lane lanes[kMaxThreads];
    int interactive = count > 1 && !strcmp(values[1], "--interactive"), devices;
    unsigned threads = count > 1 + interactive ? (unsigned)atoi(values[1 + interactive]) : 4;
    if (count > 2 + interactive) steps = (unsigned)atoi(values[2 + interactive]);
    if (count > 3 + interactive) pause_us = (unsigned)atoi(values[3 + interactive]);
    if (threads > kMaxThreads) threads = kMaxThreads;
    hipDeviceProp_t properties;
    must(hipGetDeviceCount(&devices), "hipGetDeviceCount");
    must(hipGetDevicePropertiesR0600(&properties, 0), "hipGetDeviceProperties");
    fprintf(stderr, "hip_victim: %s\n", properties.name);
    for (unsigned i = 0; i < threads; i++) lanes[i].number = i + 1;
    uint64_t first = play_round(lanes, threads);
    if (interactive)
        serve(lanes, threads);
    else
        say_digest(first);
    return 0;
}
