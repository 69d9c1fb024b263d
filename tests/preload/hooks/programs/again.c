// SPDX-License-Identifier: Apache-2.0
//
// Opens the driver, uses it, closes it, and does so again: a pointer kept from the first time must not be stale.
#include <dlfcn.h>
#include <stdio.h>
#include <sys/mman.h>

int main() {
    for (int i = 0; i < 3; ++i) {
        void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
        const char** last = dlsym(driver, "driver_last");
        int (*launch)() = dlsym(driver, "cuLaunchKernel");
        int result = launch(0, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0);
        printf("%d %s\n", result, *last);
        dlclose(driver);
        mmap(0, 1 << 20, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);  // so that the next one lies elsewhere
    }
    return 0;
}
