// SPDX-License-Identifier: Apache-2.0
//
// Allocates once by each way of reaching the driver. Linked with it.
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>

typedef int (*Alloc)(unsigned long long*, size_t);
int cuMemAlloc_v2(unsigned long long*, size_t);
extern const char* driver_last;
extern int driver_calls;

static void use(const char* how, Alloc alloc) {
    unsigned long long at = 0;
    int before = driver_calls;
    driver_last = "nobody";
    int result = alloc ? alloc(&at, 100) : -1;
    printf("%s: %d, %d calls, last %s\n", how, result, driver_calls - before, driver_last);
}

int main() {
    use("linked", cuMemAlloc_v2);
    use("default", dlsym(RTLD_DEFAULT, "cuMemAlloc_v2"));
    use("next", dlsym(RTLD_NEXT, "cuMemAlloc_v2"));
    use("program", dlsym(dlopen(0, RTLD_LAZY), "cuMemAlloc_v2"));
    unsigned long (*entered)(void) = dlsym(RTLD_DEFAULT, "standin_entered");
    if (entered) fprintf(stderr, "%lu\n", entered());
    return 0;
}
