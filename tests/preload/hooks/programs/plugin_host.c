// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char** argv) {
    if (argc < 2) return 2;
    printf("before: %d\n", dlsym(RTLD_DEFAULT, "cuLaunchKernel") != 0);
    void* plugin = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (!plugin) return 3;
    void* driver = dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_LAZY);
    const char** last = dlsym(driver, "driver_last");
    void* (*by_default)(const char*) = dlsym(plugin, "plugin_default");
    int (*call)(void) = dlsym(plugin, "plugin_call");
    printf("program: %d\n", dlsym(RTLD_DEFAULT, "cuLaunchKernel") != 0);
    int (*launch)() = by_default("cuLaunchKernel");
    printf("plugin: %d\n", launch != 0);
    launch(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
    printf("calls %s\n", *last);
    int result = call();
    printf("linked: %d, calls %s\n", result, *last);
    unsigned long (*entered)(void) = dlsym(RTLD_DEFAULT, "standin_entered");
    if (entered) fprintf(stderr, "%lu\n", entered());
    return 0;
}
