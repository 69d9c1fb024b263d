// SPDX-License-Identifier: Apache-2.0
//
// A program without manners: what is rude about it is a word of its dialogue, one file a kind. It prints the same bare
// and under gcr. Each word gets one line; `?` reads all device memory back.
//
// A storm is a rude thing done over and over on a thread of its own, between `storm NAME`, which is answered after the
// first time, and `calm NAME`.
#ifndef RUDE_H
#define RUDE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef unsigned long long device_pointer;

// The driver, found as frameworks find it. No vendor header is needed.
#define DRIVER_CALLS(CALL)                                            \
    CALL(cuInit, (unsigned flags))                                    \
    CALL(cuDeviceGet, (int* device, int ordinal))                     \
    CALL(cuDevicePrimaryCtxRetain, (void** context, int device))      \
    CALL(cuDevicePrimaryCtxReset_v2, (int device))                    \
    CALL(cuCtxSetCurrent, (void* context))                            \
    CALL(cuCtxSynchronize, (void))                                    \
    CALL(cuMemAlloc_v2, (device_pointer * out, size_t bytes))         \
    CALL(cuMemFree_v2, (device_pointer at))                           \
    CALL(cuMemGetInfo_v2, (size_t* left, size_t* total))              \
    CALL(cuMemsetD32_v2, (device_pointer at, unsigned value, size_t)) \
    CALL(cuMemcpyDtoH_v2, (void* to, device_pointer from, size_t bytes))

#ifdef DRIVER_CALLS_BY_LINK
#define CALL(name, parameters) int name parameters;
#else
#define CALL(name, parameters) extern int(*name) parameters;
#endif
DRIVER_CALLS(CALL)
#undef CALL

void enter(int ordinal);  // this thread works in the primary context of a device
void hold(unsigned count, size_t words);  // device memory that `?` knows
void forget(void);  // that it held any: its context is gone, or its program
const char* digest(void);
void use_device(uint32_t value, size_t words);  // allocate, fill, look, free: wrong words end the program

void must(int result, const char* what);  // 0, or the program ends with 1
_Noreturn void fail(const char* what);

struct word {
    const char* name;
    const char* (*say)(const char* argument);
};

struct rude_storm {
    const char* name;
    void (*once)(void);
};

// Each file's own; the last entry is {0}.
extern const struct word signal_words[], process_words[], thread_words[], limit_words[], memory_words[];
extern const struct rude_storm signal_storms[], process_storms[], thread_storms[], limit_storms[], memory_storms[];

const char* storm(const char* name);
const char* calm(const char* name);
void converse(void);  // until the input ends
extern char** arguments;  // the program's own

#endif
