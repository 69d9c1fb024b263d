// SPDX-License-Identifier: Apache-2.0
//
// A plugin linked with the driver and opened locally: the driver is in its scope and in no other.
#include <dlfcn.h>

void* plugin_default(const char* name) {
    return dlsym(RTLD_DEFAULT, name);
}
void* plugin_next(const char* name) {
    return dlsym(RTLD_NEXT, name);
}
int cuInit(unsigned);
int plugin_call(void) {
    return cuInit(0);
}
