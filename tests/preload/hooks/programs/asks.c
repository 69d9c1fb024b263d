// SPDX-License-Identifier: Apache-2.0
//
// Asks a linked cuGetProcAddress_v2 for a launch, and launches.
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>

int cuGetProcAddress_v2(const char*, void**, int, uint64_t, int*);
extern const char* driver_last;

int main() {
    void* launch = 0;
    int result = cuGetProcAddress_v2("cuLaunchKernel", &launch, 12000, 0, 0);
    printf("%d %d\n", result, launch != 0);
    ((int (*)())launch)(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
    printf("%s\n", driver_last);
    unsigned long (*entered)(void) = dlsym(RTLD_DEFAULT, "standin_entered");
    if (entered) fprintf(stderr, "%lu\n", entered());
    return 0;
}
