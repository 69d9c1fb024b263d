// SPDX-License-Identifier: Apache-2.0
//
// What a lookup and a call cost, in nanoseconds.
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}

#define MEASURE(what, times, body)                            \
    do {                                                      \
        double start = now();                                 \
        for (int i = 0; i < (times); ++i) body;               \
        printf("%s %.1f\n", what, (now() - start) / (times)); \
    } while (0)

int main() {
    void* driver = dlopen("libcuda.so.1", RTLD_NOW);
    int (*ask)(const char*, void**, int, uint64_t, int*) = dlsym(driver, "cuGetProcAddress_v2");
    int (*launch)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**);
    void* found;
    launch = dlsym(driver, "cuStreamWaitEvent");
    MEASURE("dlsym_hooked_ns", 20000, dlsym(driver, "cuLaunchKernel"));
    MEASURE("dlsym_passive_ns", 20000, dlsym(driver, "cuCtxSynchronize"));
    MEASURE("dlsym_other_ns", 20000, dlsym(RTLD_DEFAULT, "malloc"));
    MEASURE("proc_address_ns", 20000, ask("cuLaunchKernel", &found, 12000, 0, 0));
    MEASURE("enqueue_call_ns", 2000000, launch(0, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0));
    return 0;
}
