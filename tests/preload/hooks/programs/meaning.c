// SPDX-License-Identifier: Apache-2.0
//
// What lookups mean, seen from the program itself. argv[1] says how the driver is loaded first: none | local | global.
// Built with `which` of its own, and with libmeaning_a.so, libmeaning_b.so behind it.
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char* which(void) {
    return "program";
}
const char* next_of_a(void);
const char* next_of_b(void);
const char* default_of_a(void);

static void result(const char* what, void* found) {
    const char* error = dlerror();
    printf("%s: %s, %s, errno %d", what, found ? "found" : "null", error ? error : "no error", errno);
    const char** last = 0;
    void* driver = dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_LAZY);
    if (driver) last = dlsym(driver, "driver_last");
    if (found && last) ((int (*)())found)(), printf(", calls %s", *last);
    printf("\n");
    dlerror();
}

static void look(const char* name) {
    printf("-- %s\n", name);
    result("default", dlsym(RTLD_DEFAULT, name));
    result("next", dlsym(RTLD_NEXT, name));
    result("program", dlsym(dlopen(0, RTLD_LAZY), name));
    result("default, version", dlvsym(RTLD_DEFAULT, name, "GLIBC_2.2.5"));
    result("next, version", dlvsym(RTLD_NEXT, name, "NO_SUCH_1"));
    void* driver = dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_LAZY);
    dlerror();
    if (driver) result("driver", dlsym(driver, name));
    if (driver) result("driver, version", dlvsym(driver, name, "GLIBC_2.2.5"));
    if (driver) dlclose(driver);
    void* libc = dlopen("libc.so.6", RTLD_LAZY);
    result("libc", dlsym(libc, name));
}

static void versions(void) {
    void* old = dlvsym(RTLD_DEFAULT, "memcpy", "GLIBC_2.2.5");
    void* new = dlvsym(RTLD_DEFAULT, "memcpy", "GLIBC_2.14");
    printf("memcpy: %d %d %d\n", old != 0, new != 0, old != new);
    printf("getpid: %d\n",
           ((int (*)(void))dlsym(RTLD_NEXT, "getpid"))() == ((int (*)(void))dlsym(RTLD_DEFAULT, "getpid"))());
}

int main(int argc, char** argv) {
    if (argc < 2) return 2;
    if (strcmp(argv[1], "local") == 0 && !dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL)) return 3;
    if (strcmp(argv[1], "global") == 0 && !dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL)) return 3;
    errno = 77;
    const char* (*next)(void) = dlsym(RTLD_NEXT, "which");
    const char* (*first)(void) = dlsym(RTLD_DEFAULT, "which");
    printf("program: next %s, default %s\n", next(), first());
    printf("a: next %s, default %s\n", next_of_a(), default_of_a());
    printf("b: next %s\n", next_of_b());
    versions();
    look("cuMemAlloc_v2");
    look("cuLaunchKernel");
    look("cuCtxSynchronize");
    look("cuNoSuchThing");
    look("no_such_thing");
    result("empty", dlsym(RTLD_DEFAULT, ""));
    return 0;
}
