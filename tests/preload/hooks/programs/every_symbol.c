// SPDX-License-Identifier: Apache-2.0
//
// Reaches every driver symbol in one way and prints which of the driver's functions was called.
// names.h as for driver.c. argv[1]: handle | global | program | proc1 | proc2 | mixed; argv[2]: print pointers' identity.
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int (*Function)();

static const char** last;
static int* calls;
static void* libcuda;
static unsigned long long out[32];

static void call(const char* asked, void* function) {
    if (!function) {
        printf("%s -> none\n", asked);
        return;
    }
    *last = "nobody";
    int before = *calls;
    ((Function)function)(out, out, out, out, out, out, out, out, out, out, out, out, out, out);
    printf("%s -> %s %d\n", asked, *last, *calls - before);
}

static int is_lookup(const char* symbol) {
    return strncmp(symbol, "cuGetProcAddress", 16) == 0;
}

static void by_name(void* handle) {
#define SYMBOL(symbol, base, version, stream) \
    if (!is_lookup(#symbol)) call(#symbol, dlsym(handle, #symbol));
#define WRITTEN_ABOVE SYMBOL
#define ALIAS(symbol, base, version, stream)
#include "names.h"
#undef SYMBOL
#undef WRITTEN_ABOVE
#undef ALIAS
}

static const char* bases[] = {
#define SYMBOL(symbol, base, version, stream) #base,
#define WRITTEN_ABOVE SYMBOL
#define ALIAS(symbol, base, version, stream) #base,
#include "names.h"
#undef SYMBOL
#undef WRITTEN_ABOVE
#undef ALIAS
};

static void ask(int which, const char* name, int version, uint64_t flags) {
    int (*one)(const char*, void**, int, uint64_t) = dlsym(libcuda, "cuGetProcAddress");
    int (*two)(const char*, void**, int, uint64_t, int*) = dlsym(libcuda, "cuGetProcAddress_v2");
    void* function = (void*)1;
    int status = -1;
    int result = which == 1 ? one(name, &function, version, flags) : two(name, &function, version, flags, &status);
    char asked[160];
    snprintf(asked, sizeof asked, "%s %d %d = %d %d", name, version, (int)flags, result, status);
    call(asked, result == 0 && !is_lookup(name) ? function : 0);
}

static void by_version(int which) {
    static const int versions[] = {1000, 2000, 3020, 4000, 7000, 8000, 10000, 11010, 11040, 12000, 12050, 13000, 13050};
    for (size_t i = 0; i < sizeof bases / sizeof *bases; ++i) {
        if (i > 0 && strcmp(bases[i], bases[i - 1]) == 0) continue;
        for (size_t v = 0; v < sizeof versions / sizeof *versions; ++v)
            for (uint64_t flags = 0; flags <= 2; ++flags) ask(which, bases[i], versions[v], flags);
    }
}

int main(int argc, char** argv) {
    if (argc < 2) return 2;
    int global = strcmp(argv[1], "global") == 0 || strcmp(argv[1], "program") == 0;
    libcuda = dlopen("libcuda.so.1", RTLD_NOW | (global ? RTLD_GLOBAL : RTLD_LOCAL));
    if (!libcuda) return 3;
    last = dlsym(libcuda, "driver_last");
    calls = dlsym(libcuda, "driver_calls");
    if (strcmp(argv[1], "handle") == 0) by_name(libcuda);
    if (strcmp(argv[1], "global") == 0) by_name(RTLD_DEFAULT);
    if (strcmp(argv[1], "program") == 0) by_name(dlopen(0, RTLD_NOW));
    if (strcmp(argv[1], "proc1") == 0) by_version(1);
    if (strcmp(argv[1], "proc2") == 0) by_version(2);
    if (strcmp(argv[1], "mixed") == 0) by_name(libcuda), by_version(2);
    unsigned long (*entered)(void) = dlsym(RTLD_DEFAULT, "standin_entered");
    fprintf(stderr, "%lu\n", entered ? entered() : 0);
    return 0;
}
