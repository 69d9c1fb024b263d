// SPDX-License-Identifier: Apache-2.0
//
// What interposition could slow down, over the bare driver API: launches of an empty kernel, allocate and free.
//
//   driver_rates launch          prints {"launches_per_s": ...}
//   driver_rates alloc           prints {"pairs_per_s_1024": ..., ...}, allocate + free, for 1 KiB to 1 GiB
//
// Medians over batches: one interrupted batch does not move them.
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { kLaunchBatch = 512, kLaunchBatches = 600, kWarmBatches = 60, kAllocBatch = 8, kAllocSeconds = 1 };

typedef unsigned long long device_pointer;

static int (*cu_init)(unsigned);
static int (*device_get)(int*, int);
static int (*context_retain)(void**, int);
static int (*context_set)(void*);
static int (*context_synchronize)(void);
static int (*module_load)(void**, const void*);
static int (*module_function)(void**, void*, const char*);
static int (*launch)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**,
                     void**);
static int (*mem_alloc)(device_pointer*, size_t);
static int (*mem_free)(device_pointer);

static const struct {
    const char* name;
    void* slot;
} kCalls[] = {
    {"cuInit", &cu_init},
    {"cuDeviceGet", &device_get},
    {"cuDevicePrimaryCtxRetain", &context_retain},
    {"cuCtxSetCurrent", &context_set},
    {"cuCtxSynchronize", &context_synchronize},
    {"cuModuleLoadData", &module_load},
    {"cuModuleGetFunction", &module_function},
    {"cuLaunchKernel", &launch},
    {"cuMemAlloc_v2", &mem_alloc},
    {"cuMemFree_v2", &mem_free},
};

static const char kEmptyKernel[] =
    ".version 6.0\n.target sm_50\n.address_size 64\n.visible .entry empty()\n{\n  ret;\n}\n";

static void must(int result, const char* call) {
    if (result == 0) return;
    fprintf(stderr, "driver_rates: %s returned %d\n", call, result);
    exit(1);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int ascending(const void* a, const void* b) {
    double x = *(const double*)a, y = *(const double*)b;
    return (x > y) - (x < y);
}

static double median(double* values, size_t count) {
    qsort(values, count, sizeof *values, ascending);
    return values[count / 2];
}

static void open_driver(void) {
    void* library = dlopen("libcuda.so.1", RTLD_NOW);
    must(library == NULL, "dlopen libcuda.so.1");
    for (size_t i = 0; i < sizeof kCalls / sizeof *kCalls; i++) {
        *(void**)kCalls[i].slot = dlsym(library, kCalls[i].name);
        must(*(void**)kCalls[i].slot == NULL, kCalls[i].name);
    }
    int device;
    void* context;
    must(cu_init(0), "cuInit");
    must(device_get(&device, 0), "cuDeviceGet");
    must(context_retain(&context, device), "cuDevicePrimaryCtxRetain");
    must(context_set(context), "cuCtxSetCurrent");
}

static void measure_launches(void) {
    static double seconds[kLaunchBatches];
    void *module, *function;
    must(module_load(&module, kEmptyKernel), "cuModuleLoadData");
    must(module_function(&function, module, "empty"), "cuModuleGetFunction");
    for (int batch = -kWarmBatches; batch < kLaunchBatches; batch++) {
        double start = now();
        for (int i = 0; i < kLaunchBatch; i++)
            must(launch(function, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL), "cuLaunchKernel");
        must(context_synchronize(), "cuCtxSynchronize");
        if (batch >= 0) seconds[batch] = now() - start;
    }
    printf("{\"launches_per_s\": %.1f}\n", kLaunchBatch / median(seconds, kLaunchBatches));
}

// Pairs a second for one size: a batch is allocated whole, then freed whole.
static double allocation_rate(size_t size) {
    static double seconds[100000];
    device_pointer pointers[kAllocBatch];
    size_t count = 0;
    double end = now() + kAllocSeconds;
    while (now() < end && count < sizeof seconds / sizeof *seconds) {
        double start = now();
        for (int i = 0; i < kAllocBatch; i++) must(mem_alloc(&pointers[i], size), "cuMemAlloc");
        for (int i = 0; i < kAllocBatch; i++) must(mem_free(pointers[i]), "cuMemFree");
        seconds[count++] = now() - start;
    }
    return kAllocBatch / median(seconds, count);
}

static void measure_allocations(void) {
    printf("{");
    for (size_t size = 1024; size <= (size_t)1 << 30; size *= 32)
        printf("%s\"pairs_per_s_%zu\": %.2f", size == 1024 ? "" : ", ", size, allocation_rate(size));
    printf("}\n");
}

int main(int count, char** values) {
    if (count != 2 || (strcmp(values[1], "launch") && strcmp(values[1], "alloc"))) return 2;
    open_driver();
    if (values[1][0] == 'l')
        measure_launches();
    else
        measure_allocations();
    return 0;
}
