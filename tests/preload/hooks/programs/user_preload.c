// SPDX-License-Identifier: Apache-2.0
//
// A user's own preload: wraps cuMemAlloc_v2 and, built with -DWRAP_PROC, cuGetProcAddress_v2. HOW says where it finds
// the next one: NEXT (RTLD_NEXT), OPEN (dlopen and dlsym), PROC (cuGetProcAddress_v2 of an opened driver).
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>

typedef int (*Alloc)(unsigned long long*, size_t);
typedef int (*Proc)(const char*, void**, int, uint64_t, int*);
static int depth;

static Alloc next(void) {
#if defined(NEXT)
    return dlsym(RTLD_NEXT, "cuMemAlloc_v2");
#elif defined(OPEN)
    return dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuMemAlloc_v2");
#else
    Proc ask = dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuGetProcAddress_v2");
    void* found = 0;
    ask("cuMemAlloc", &found, 12000, 0, 0);
    return found;
#endif
}

int cuMemAlloc_v2(unsigned long long* at, size_t bytes) {
    if (++depth > 3) {
        printf("the preload reached itself\n");
        return 999;
    }
    Alloc real = next();
    printf("preload sees %zu bytes\n", bytes);
    int result = real ? real(at, bytes + 1) : 998;
    --depth;
    return result;
}

#ifdef WRAP_PROC
int cuGetProcAddress_v2(const char* name, void** out, int version, uint64_t flags, int* status) {
    Proc real = dlsym(RTLD_NEXT, "cuGetProcAddress_v2");
    printf("preload sees a lookup of %s\n", name);
    return real(name, out, version, flags, status);
}
#endif
