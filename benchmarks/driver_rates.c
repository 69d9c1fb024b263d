// SPDX-License-Identifier: Apache-2.0
//
// What interposition could slow down, over the bare driver API: launches of an empty kernel, allocate and free.
//
//   driver_rates launch [MODULE]       slices are named `launch`; MODULE: a file with a kernel `empty`, instead of PTX
//   driver_rates alloc MOST            slices are named by a size in bytes, up to MOST
//
// Prints `ready` once warm; then a line `NAME SECONDS` makes one slice of work and prints
// {"operations": ..., "seconds": ..., "median_s": ...}, the median of one operation over batches. Between slices
// nothing is queued, and this process sleeps. Ends with its standard input.
//
// `alloc` says ready while it still holds a whole batch of the largest size, so that a process that prepares for the
// program's memory has seen all of it; the first slice starts without it.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { kLaunchBatch = 512, kWarmBatches = 60, kLeadBatches = 2, kAllocBatch = 8, kMostBatches = 100000 };

typedef unsigned long long device_pointer;

static int (*cu_init)(unsigned);
static int (*device_get)(int*, int);
static int (*context_retain)(void**, int);
static int (*context_set)(void*);
static int (*context_synchronize)(void);
static int (*module_load)(void**, const char*);
static int (*module_load_data)(void**, const void*);
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
    {"cuModuleLoad", &module_load},
    {"cuModuleLoadData", &module_load_data},
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

static void *kernel_module, *kernel;
static device_pointer held[kAllocBatch];

static void load_kernel(const char* file) {
    if (file)
        must(module_load(&kernel_module, file), "cuModuleLoad");
    else
        must(module_load_data(&kernel_module, kEmptyKernel), "cuModuleLoadData");
    must(module_function(&kernel, kernel_module, "empty"), "cuModuleGetFunction");
}

static int launch_batch(size_t unused) {
    (void)unused;
    for (int i = 0; i < kLaunchBatch; i++)
        must(launch(kernel, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL), "cuLaunchKernel");
    must(context_synchronize(), "cuCtxSynchronize");
    return kLaunchBatch;
}

static void hold(size_t size) {
    for (int i = 0; i < kAllocBatch; i++) must(mem_alloc(&held[i], size), "cuMemAlloc");
}

static void drop(void) {
    for (int i = 0; i < kAllocBatch; i++)
        if (held[i]) must(mem_free(held[i]), "cuMemFree");
    memset(held, 0, sizeof held);
}

// Allocated whole, then freed whole.
static int alloc_batch(size_t size) {
    hold(size);
    drop();
    return kAllocBatch;
}

// The first batches after a sleep find cold caches and another process's context on the device: not counted.
static void slice(int (*batch)(size_t), size_t size, double least) {
    static double each[kMostBatches];
    size_t batches = 0, operations = 0;
    for (int i = 0; i < kLeadBatches; i++) batch(size);
    double start = now(), last = start;
    while (last - start < least && batches < kMostBatches) {
        int done = batch(size);
        double end = now();
        each[batches++] = (end - last) / done;
        operations += (size_t)done;
        last = end;
    }
    printf("{\"operations\": %zu, \"seconds\": %.9f, \"median_s\": %.12f}\n", operations, last - start,
           median(each, batches));
}

static void serve(int (*batch)(size_t)) {
    char name[32];
    double seconds;
    printf("ready\n");
    fflush(stdout);
    while (scanf("%31s %lf", name, &seconds) == 2) {
        drop();
        slice(batch, strtoul(name, NULL, 10), seconds);
        fflush(stdout);
    }
}

int main(int count, char** values) {
    int launches = count > 1 && !strcmp(values[1], "launch");
    if (!launches && (count != 3 || strcmp(values[1], "alloc"))) return 2;
    open_driver();
    if (launches) {
        device_pointer kept;  // as any program: so there is something to prepare for
        must(mem_alloc(&kept, (size_t)8 << 20), "cuMemAlloc");
        load_kernel(count > 2 ? values[2] : NULL);
        for (int i = 0; i < kWarmBatches; i++) launch_batch(0);
    } else {
        hold(strtoul(values[2], NULL, 10));
    }
    serve(launches ? launch_batch : alloc_batch);
    return 0;
}
