// SPDX-License-Identifier: Apache-2.0
//
// A driver for tests: every function remembers that it was the one called. names.h lists them:
// SYMBOL(symbol, base, version, stream), WRITTEN_ABOVE(…) and ALIAS(…). Selection here is a plain scan, written apart from the shim's.
#include <dlfcn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

const char* driver_last = "";
int driver_calls;
unsigned char driver_bytes[256];  // what was passed by value, last
int driver_result;  // what the next calls answer

static int hit(const char* name) {
    driver_last = name;
    ++driver_calls;
    return driver_result;
}

// ---- functions with parameters that a wrapper could get wrong
struct bytes64 {
    char bytes[64];
};
struct location {
    int type, id;
};
struct frame {
    char bytes[64];
};

int cuIpcOpenMemHandle_v2(unsigned long long* out, struct bytes64 handle, unsigned flags) {
    memcpy(driver_bytes, &handle, sizeof handle);
    *out = flags;
    return hit("cuIpcOpenMemHandle_v2");
}
int cuMemPrefetchAsync_v2(unsigned long long at, size_t count, struct location where, unsigned flags, void* stream) {
    snprintf((char*)driver_bytes, sizeof driver_bytes, "%llx %zx %d %d %u %p", at, count, where.type, where.id, flags,
             stream);
    return hit("cuMemPrefetchAsync_v2");
}
int cuEGLStreamProducerPresentFrame(void* connection, struct frame frame, void** stream) {
    memcpy(driver_bytes, &frame, sizeof frame);
    *stream = connection;
    return hit("cuEGLStreamProducerPresentFrame");
}
int cuLaunchKernel(void* f, unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned g, unsigned h, void* s,
                   void** k, void** x) {
    snprintf((char*)driver_bytes, sizeof driver_bytes, "%p %u %u %u %u %u %u %u %p %p %p", f, a, b, c, d, e, g, h, s,
             (void*)k, (void*)x);
    return hit("cuLaunchKernel");
}

int cuGetProcAddress(const char* name, void** out, int version, uint64_t flags);
int cuGetProcAddress_v2(const char* name, void** out, int version, uint64_t flags, int* status);

#define SYMBOL(symbol, base, version, stream) \
    int symbol() {                            \
        return hit(#symbol);                  \
    }
#define WRITTEN_ABOVE(symbol, base, version, stream)
#define ALIAS(symbol, base, version, stream)
#include "names.h"
#undef SYMBOL
#undef WRITTEN_ABOVE
#undef ALIAS

static const struct known {
    const char* base;
    int version, stream;
    void* function;
} known[] = {
#define SYMBOL(symbol, base, version, stream) {#base, version, stream, (void*)symbol},
#define WRITTEN_ABOVE SYMBOL
#define ALIAS(symbol, base, version, stream) {#base, version, stream, (void*)symbol},
#include "names.h"
};

// An ABI newer than anything the shim's list knows.
static int from_the_future() {
    return hit("cuMemAlloc_v9");
}
static int cuNeverHeardOf() {
    return hit("cuNeverHeardOf");
}

static void* choose(const char* name, int version, uint64_t flags) {
    if (strcmp(name, "cuNeverHeardOf") == 0) return (void*)cuNeverHeardOf;
    if (strcmp(name, "cuMemAlloc") == 0 && version >= 14000) return (void*)from_the_future;
    const struct known* best = 0;
    for (int stream = 0; stream <= (flags & 2 ? 1 : 0); ++stream)
        for (size_t i = 0; i < sizeof known / sizeof *known; ++i) {
            const struct known* each = &known[i];
            if (strcmp(each->base, name) != 0 || each->stream != stream || each->version > version) continue;
            if (!best || each->version >= best->version) best = each;
        }
    return best ? best->function : 0;
}

int cuGetProcAddress(const char* name, void** out, int version, uint64_t flags) {
    *out = choose(name, version, flags);
    hit("cuGetProcAddress");
    return *out ? 0 : 500;
}

int cuGetProcAddress_v2(const char* name, void** out, int version, uint64_t flags, int* status) {
    *out = choose(name, version, flags);
    if (status) *status = *out ? 0 : 1;
    hit("cuGetProcAddress_v2");
    return *out ? 0 : 500;
}

// A driver that looks itself up, as some do.
int driver_finds_itself(void) {
    return dlsym(RTLD_DEFAULT, "cuMemAlloc_v2") == (void*)cuMemAlloc_v2 &&
           dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuMemFree_v2") == (void*)cuMemFree_v2;
}

// Exported, and in no header.
int cuDriverOnlyInThisFile() {
    return hit("cuDriverOnlyInThisFile");
}
