// SPDX-License-Identifier: Apache-2.0
//
// Refers to the driver weakly, as programs do that may run without one; there is none.
#include <dlfcn.h>
#include <stdio.h>

int cuInit(unsigned) __attribute__((weak));
int cuMemAlloc_v2(unsigned long long*, size_t) __attribute__((weak));

int main() {
    unsigned long long at;
    printf("opened %d\n", dlopen("libcuda.so.1", RTLD_NOW) != 0);
    printf("init %d\n", cuInit ? cuInit(0) : -1);
    printf("alloc %d\n", cuMemAlloc_v2 ? cuMemAlloc_v2(&at, 1) : -1);
    const char* error = dlerror();
    printf("%s\n", error ? error : "no error");
    return 0;
}
