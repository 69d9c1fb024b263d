// SPDX-License-Identifier: Apache-2.0
//
// A user's own preload that exports dlsym, as other interposers do, and counts what passes.
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static int seen;

void* dlsym(void* handle, const char* name) {
    static void* (*real)(void*, const char*);
    if (!real) real = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    if (strncmp(name, "cu", 2) == 0) ++seen;
    return real(handle, name);
}

__attribute__((destructor)) static void report(void) {
    printf("preload saw %d lookups\n", seen);
}
