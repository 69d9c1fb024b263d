// SPDX-License-Identifier: Apache-2.0
//
// Lookups from libraries however they came: at start, by dlopen, with RTLD_DEEPBIND, into a namespace of their own;
// before a driver is there, beside it, and after it was closed. argv[1], argv[2]: plugins without and with the driver.
#include <dlfcn.h>
#include <stdio.h>

typedef void (*Look)(const char* when);

void look_all(const char* when);
void look_from_a_thread(const char* when);

static void all(const char* when) {
    look_all(when);
    look_from_a_thread(when);
}

static void plugin(void* handle, const char* when) {
    printf("-- %s: %d\n", when, handle != 0);
    if (!handle) return;
    ((Look)dlsym(handle, "look_all"))(when);
    ((Look)dlsym(handle, "look_from_a_thread"))(when);
    void* found = dlsym(handle, "cuLaunchKernel");
    printf("by its handle: %d\n", found != 0);
    all("beside it");
    dlclose(handle);
    all("after it");
}

int main(int argc, char** argv) {
    if (argc < 3) return 2;
    setvbuf(stdout, 0, _IONBF, 0);
    all("main");
    plugin(dlopen(argv[1], RTLD_NOW | RTLD_LOCAL), "plugin");
    plugin(dlopen(argv[1], RTLD_NOW | RTLD_DEEPBIND), "deep plugin");
    plugin(dlmopen(LM_ID_NEWLM, argv[1], RTLD_NOW | RTLD_LOCAL), "plugin in a namespace");
    plugin(dlopen(argv[2], RTLD_NOW | RTLD_LOCAL), "plugin with the driver");
    plugin(dlopen(argv[2], RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND), "deep plugin with the driver");
    plugin(dlmopen(LM_ID_NEWLM, argv[2], RTLD_NOW | RTLD_LOCAL), "plugin with the driver in a namespace");
    plugin(dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL) ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : 0,
           "beside a driver");
    plugin(dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL) ? dlopen(argv[1], RTLD_NOW) : 0, "beside a global driver");
    return 0;
}
