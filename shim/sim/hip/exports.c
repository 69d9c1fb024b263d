// SPDX-License-Identifier: Apache-2.0
//
// The exported functions, and what is common to all: the runtime starts by itself, calls can be made to fail, the last
// error of a thread is kept.
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "front.h"
#include "sysfs.h"

#define API(node, name, parameters, arguments)      \
    SIM_API hipError_t name parameters {            \
        hipError_t result = front_begin(#name);     \
        if (!result) result = sim_##name arguments; \
        return front_end(result);                   \
    }
#define PLAIN(node, name)
#include "symbols.def"
#undef API
#undef PLAIN

// ---- start --------------------------------------------------------------------------------------------------------
static bool named_by_uuid(const char* text, size_t length, unsigned real) {
    char candidate[32];
    snprintf(candidate, sizeof candidate, "GPU-%016llx", (unsigned long long)sim_machine_unique_id(real));
    return length == strlen(candidate) && !strncmp(candidate, text, length);
}

static bool names(const char* text, size_t length, unsigned position, unsigned real) {
    char* end;
    unsigned long index = strtoul(text, &end, 10);
    return named_by_uuid(text, length, real) || (end != text && end == text + length && index == position);
}

// Keeps of `devices` what the list names, in its order; the list ends at the first entry that names none.
static unsigned filter(const char* list, unsigned devices[SIM_MAX_DEVICES], unsigned count) {
    unsigned kept[SIM_MAX_DEVICES], found = 0;
    while (*list && found < SIM_MAX_DEVICES) {
        size_t length = strcspn(list, ",");
        unsigned i = 0;
        while (i < count && !names(list, length, i, devices[i])) i++;
        if (i == count) break;
        kept[found++] = devices[i];
        list += length + (list[length] == ',');
    }
    memcpy(devices, kept, found * sizeof *kept);
    return found;
}

static unsigned visible_devices(unsigned devices[SIM_MAX_DEVICES]) {
    unsigned count = sim_machine_config()->devices;
    for (unsigned i = 0; i < count; i++) devices[i] = i;
    const char* lower = getenv("ROCR_VISIBLE_DEVICES");
    if (lower) count = filter(lower, devices, count);
    const char* upper = getenv("HIP_VISIBLE_DEVICES");
    if (!upper) upper = getenv("CUDA_VISIBLE_DEVICES");
    return upper ? filter(upper, devices, count) : count;
}

// The kernel's driver is in the process, too. Through /dev/kfd a CRIU plugin has it save and remake a process's state on
// the device. Here a descriptor stands for /dev/kfd that CRIU cannot save by itself either, and the service for the ioctls.
enum { STANDS_FOR_KFD = O_RDWR | O_CLOEXEC };

bool sim_front_start(void) {
    (void)open("/dev/fuse", STANDS_FOR_KFD);  // never closed; where the machine has none, CRIU needs no plugin
    return front_sysfs_start() && sim_service_start();
}

const char* sim_front_service(void) {
    return "gcr-kfd";
}

void sim_front_saved(void) {
    front_sysfs_rest();
}

void sim_front_restored(void) {
    front_sysfs_restored();
}

static hipError_t start(void) {
    if (sim_process_started()) return hipSuccess;
    if (sim_machine_open()) return hipErrorInvalidDevice;
    unsigned devices[SIM_MAX_DEVICES];
    unsigned count = visible_devices(devices);
    if (!count) return hipErrorInvalidDevice;
    sim_result result = sim_process_start(devices, count);
    if (!result) sim_process_ends_at_exit();
    return front_result(result);
}

// ---- around every call --------------------------------------------------------------------------------------------
static _Thread_local hipError_t last_error;

hipError_t front_begin(const char* function) {
    hipError_t started = start();
    sim_result begun = sim_call_begin(function);
    return started ? started : front_result(begun);
}

hipError_t front_end(hipError_t result) {
    sim_call_end();
    front_sysfs_update();
    if (result && result != hipErrorNotReady) last_error = result;
    return result;
}

SIM_API hipError_t hipGetLastError(void) {
    hipError_t last = last_error;
    last_error = hipSuccess;
    return last;
}

SIM_API hipError_t hipPeekAtLastError(void) {
    return last_error;
}

// ---- lookups ------------------------------------------------------------------------------------------------------
enum { PROC_ADDRESS_PER_THREAD = 2, R0600_SINCE = 600 };

// As in the real runtime, by dlsym on its own handle: a library that interposes dlsym is asked for these names as well.
static void* own(const char* symbol) {
    Dl_info here;
    void* handle = dladdr((void*)own, &here) ? dlopen(here.dli_fname, RTLD_NOW | RTLD_NOLOAD) : NULL;
    void* found = handle ? dlsym(handle, symbol) : NULL;
    if (handle) dlclose(handle);
    return found;
}

hipError_t sim_hipGetProcAddress(const char* symbol, void** pfn, int version, uint64_t flags,
                                 hipDriverProcAddressQueryResult* status) {
    if (!symbol || !*symbol || !pfn) return hipErrorInvalidValue;
    char variant[128];
    snprintf(variant, sizeof variant, "%s_spt", symbol);
    *pfn = flags == PROC_ADDRESS_PER_THREAD ? own(variant) : NULL;
    bool renamed = !strcmp(symbol, "hipGetDeviceProperties") && version >= R0600_SINCE;
    if (!*pfn) *pfn = own(renamed ? "hipGetDevicePropertiesR0600" : symbol);
    if (status) *status = *pfn ? HIP_GET_PROC_ADDRESS_SUCCESS : HIP_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return *pfn ? hipSuccess : hipErrorInvalidValue;
}
