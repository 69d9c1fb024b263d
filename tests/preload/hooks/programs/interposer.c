// SPDX-License-Identifier: Apache-2.0
//
// A program that defines a driver function itself and goes on by RTLD_NEXT: it stands before every preload.
#include <dlfcn.h>
#include <stdio.h>

typedef int (*Launch)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**,
                      void**);
extern const char* driver_last;

int cuLaunchKernel(void* f, unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned g, unsigned h, void* s,
                   void** k, void** x) {
    Launch next = dlsym(RTLD_NEXT, "cuLaunchKernel");
    printf("program's own\n");
    return next(f, a, b, c, d, e, g, h, s, k, x);
}

int main() {
    int result = cuLaunchKernel(0, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0);
    printf("%d %s\n", result, driver_last);
    unsigned long (*entered)(void) = dlsym(RTLD_DEFAULT, "standin_entered");
    if (entered) fprintf(stderr, "%lu\n", entered());
    return 0;
}
