// SPDX-License-Identifier: Apache-2.0
//
// Lookups of what a list may not know: newer versions, unknown names, whole names, null arguments.
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static const char** last;
static int (*ask)(const char*, void**, int, uint64_t, int*);

static void try(const char* name, int version) {
    void* found = 0;
    int result = ask(name, &found, version, 0, 0);
    *last = "nobody";
    unsigned long long at;
    if (found) ((int (*)())found)(&at, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10);
    const char* error = dlerror();
    printf("%s %d: %d, calls %s, %s\n", name, version, result, *last, error ? error : "no error");
}

int main() {
    void* driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) return 3;
    last = dlsym(driver, "driver_last");
    ask = dlsym(driver, "cuGetProcAddress_v2");
    try("cuMemAlloc", 13050);
    try("cuMemAlloc", 13999);
    try("cuMemAlloc", 14000);
    try("cuNeverHeardOf", 13050);
    try("cuNeverHeardOf", 13050);
    try("", 13050);
    try("cuLaunchKernel", 14000);
    printf("dlsym: %d\n", dlsym(driver, "cuDriverOnlyInThisFile") != 0);
    printf("itself: %d\n", ((int (*)(void))dlsym(driver, "driver_finds_itself"))());
    int (*refuses)(void) = dlsym(RTLD_DEFAULT, "standin_refuses_its_own_address");
    if (refuses && !refuses()) fprintf(stderr, "took its own address\n");
    unsigned (*count)(void) = dlsym(RTLD_DEFAULT, "standin_unclassified");
    const char* (*name)(unsigned) = dlsym(RTLD_DEFAULT, "standin_unclassified_name");
    for (unsigned i = 0; count && i < count(); ++i) fprintf(stderr, "%s\n", name(i));
    return 0;
}
