// SPDX-License-Identifier: Apache-2.0
//
// NVML over the simulated machine: what it takes to list devices, their memory, and its users.
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fault.h"
#include "machine.h"

#define NVML_API __attribute__((visibility("default")))

typedef int nvmlReturn_t;
typedef const struct device* nvmlDevice_t;

enum {
    NVML_SUCCESS = 0,
    NVML_ERROR_UNINITIALIZED = 1,
    NVML_ERROR_INVALID_ARGUMENT = 2,
    NVML_ERROR_NOT_SUPPORTED = 3,
    NVML_ERROR_NOT_FOUND = 6,
    NVML_ERROR_INSUFFICIENT_SIZE = 7,
    NVML_ERROR_DRIVER_NOT_LOADED = 9,
    NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
};

static const struct device {
    char nothing;  // a handle is an address in this table
} devices[SIM_MAX_DEVICES];

static atomic_int initialised;

// ---- life ---------------------------------------------------------------------------------------------------------
NVML_API nvmlReturn_t nvmlInit_v2(void) {
    if (sim_machine_open() != SIM_OK) return NVML_ERROR_DRIVER_NOT_LOADED;
    sim_result injected = sim_fault(__func__);
    if (injected) return (nvmlReturn_t)(injected - SIM_VENDOR_BASE);
    atomic_fetch_add(&initialised, 1);
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlInit(void) {
    return nvmlInit_v2();
}

NVML_API nvmlReturn_t nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    return nvmlInit_v2();
}

NVML_API nvmlReturn_t nvmlShutdown(void) {
    if (!atomic_load(&initialised)) return NVML_ERROR_UNINITIALIZED;
    atomic_fetch_sub(&initialised, 1);
    return NVML_SUCCESS;
}

static const char* const texts[] = {
    [NVML_SUCCESS] = "Success",
    [NVML_ERROR_UNINITIALIZED] = "Uninitialized",
    [NVML_ERROR_INVALID_ARGUMENT] = "Invalid Argument",
    [NVML_ERROR_NOT_SUPPORTED] = "Not Supported",
    [NVML_ERROR_NOT_FOUND] = "Not Found",
    [NVML_ERROR_INSUFFICIENT_SIZE] = "Insufficient Size",
    [NVML_ERROR_DRIVER_NOT_LOADED] = "Driver Not Loaded",
    [NVML_ERROR_ARGUMENT_VERSION_MISMATCH] = "Argument Version Mismatch",
};

NVML_API const char* nvmlErrorString(nvmlReturn_t result) {
    bool known = result >= 0 && (size_t)result < sizeof texts / sizeof *texts && texts[result];
    return known ? texts[result] : "Unknown Error";
}

#define INITIALISED()                                                \
    if (!atomic_load(&initialised)) return NVML_ERROR_UNINITIALIZED; \
    sim_result injected_ = sim_fault(__func__);                      \
    if (injected_) return (nvmlReturn_t)(injected_ - SIM_VENDOR_BASE)

static bool index_of(nvmlDevice_t handle, unsigned* index) {
    if (handle < devices || handle >= devices + SIM_MAX_DEVICES) return false;
    *index = (unsigned)(handle - devices);
    return *index < sim_machine_config()->devices;
}

#define DEVICE(name, handle) \
    INITIALISED();           \
    unsigned name;           \
    if (!index_of(handle, &name)) return NVML_ERROR_INVALID_ARGUMENT

static nvmlReturn_t put_text(char* out, unsigned room, const char* text) {
    if (!out) return NVML_ERROR_INVALID_ARGUMENT;
    if (strlen(text) >= room) return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(out, text);
    return NVML_SUCCESS;
}

// ---- the system ---------------------------------------------------------------------------------------------------
NVML_API nvmlReturn_t nvmlSystemGetDriverVersion(char* text, unsigned room) {
    INITIALISED();
    const char* asked = getenv("GCR_SIM_DRIVER");
    return put_text(text, room, asked ? asked : "580.0.0-simulated");
}

NVML_API nvmlReturn_t nvmlSystemGetNVMLVersion(char* text, unsigned room) {
    INITIALISED();
    return put_text(text, room, "13.580.0-simulated");
}

NVML_API nvmlReturn_t nvmlSystemGetCudaDriverVersion(int* version) {
    INITIALISED();
    if (!version) return NVML_ERROR_INVALID_ARGUMENT;
    *version = 13000;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int* version) {
    return nvmlSystemGetCudaDriverVersion(version);
}

// ---- devices ------------------------------------------------------------------------------------------------------
NVML_API nvmlReturn_t nvmlDeviceGetCount_v2(unsigned* count) {
    INITIALISED();
    if (!count) return NVML_ERROR_INVALID_ARGUMENT;
    *count = sim_machine_config()->devices;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetCount(unsigned* count) {
    return nvmlDeviceGetCount_v2(count);
}

NVML_API nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t* handle) {
    INITIALISED();
    if (!handle || index >= sim_machine_config()->devices) return NVML_ERROR_INVALID_ARGUMENT;
    *handle = &devices[index];
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned index, nvmlDevice_t* handle) {
    return nvmlDeviceGetHandleByIndex_v2(index, handle);
}

static void uuid_text(unsigned index, char text[48]) {
    uint8_t uuid[16];
    sim_machine_uuid(index, uuid);
    int at = snprintf(text, 48, "GPU-");
    for (int i = 0; i < 16; i++)
        at += snprintf(text + at, 48 - (size_t)at, i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", uuid[i]);
}

NVML_API nvmlReturn_t nvmlDeviceGetHandleByUUID(const char* wanted, nvmlDevice_t* handle) {
    INITIALISED();
    if (!wanted || !handle) return NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned i = 0; i < sim_machine_config()->devices; i++) {
        char text[48];
        uuid_text(i, text);
        if (strcmp(text, wanted)) continue;
        *handle = &devices[i];
        return NVML_SUCCESS;
    }
    return NVML_ERROR_NOT_FOUND;
}

static void bus_id(unsigned index, char text[32]) {
    snprintf(text, 32, "%08X:%02X:00.0", 0u, index + 1);
}

NVML_API nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char* wanted, nvmlDevice_t* handle) {
    INITIALISED();
    unsigned domain, bus;
    if (!wanted || !handle || sscanf(wanted, "%x:%x", &domain, &bus) != 2) return NVML_ERROR_INVALID_ARGUMENT;
    if (domain || !bus || bus > sim_machine_config()->devices) return NVML_ERROR_NOT_FOUND;
    *handle = &devices[bus - 1];
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t handle, unsigned* out) {
    DEVICE(index, handle);
    if (!out) return NVML_ERROR_INVALID_ARGUMENT;
    *out = index;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t handle, unsigned* out) {
    return nvmlDeviceGetIndex(handle, out);
}

NVML_API nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t handle, char* text, unsigned room) {
    DEVICE(index, handle);
    char uuid[48];
    uuid_text(index, uuid);
    return put_text(text, room, uuid);
}

NVML_API nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t handle, char* text, unsigned room) {
    DEVICE(index, handle);
    (void)index;
    return put_text(text, room, "NVIDIA SIMULATED GPU");
}

NVML_API nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t handle, int* major, int* minor) {
    DEVICE(index, handle);
    (void)index;
    if (!major || !minor) return NVML_ERROR_INVALID_ARGUMENT;
    *major = 9;
    *minor = 0;
    return NVML_SUCCESS;
}

// ---- memory -------------------------------------------------------------------------------------------------------
struct memory {
    unsigned long long total, free, used;
};

struct memory_v2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
};

NVML_API nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t handle, struct memory* out) {
    DEVICE(index, handle);
    if (!out) return NVML_ERROR_INVALID_ARGUMENT;
    out->total = sim_machine_config()->memory;
    out->used = sim_machine_used(index);
    out->free = out->total - out->used;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t handle, struct memory_v2* out) {
    if (!out) return NVML_ERROR_INVALID_ARGUMENT;
    if (out->version != (sizeof *out | 2u << 24)) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    struct memory memory;
    nvmlReturn_t result = nvmlDeviceGetMemoryInfo(handle, &memory);
    if (result) return result;
    out->total = memory.total;
    out->reserved = 0;
    out->free = memory.free;
    out->used = memory.used;
    return NVML_SUCCESS;
}

// ---- processes ----------------------------------------------------------------------------------------------------
enum { MAX_HOLDERS = 256, NO_INSTANCE = -1 };

struct process_v1 {
    unsigned pid;
    unsigned long long used;
};

struct process {  // v2 and v3 are alike
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
};

static nvmlReturn_t room_for(const void* out, unsigned* count, size_t found) {
    unsigned room = out ? *count : 0;
    *count = (unsigned)found;
    return found > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

static size_t holders_of(unsigned index, struct sim_holder holders[MAX_HOLDERS]) {
    size_t found = sim_machine_holders(index, holders, MAX_HOLDERS);
    return found < MAX_HOLDERS ? found : MAX_HOLDERS;
}

NVML_API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t handle, unsigned* count,
                                                              struct process* out) {
    DEVICE(index, handle);
    if (!count) return NVML_ERROR_INVALID_ARGUMENT;
    struct sim_holder holders[MAX_HOLDERS];
    size_t found = holders_of(index, holders);
    nvmlReturn_t result = room_for(out, count, found);
    for (size_t i = 0; !result && i < found; i++)
        out[i] =
            (struct process){(unsigned)holders[i].pid, holders[i].bytes, (unsigned)NO_INSTANCE, (unsigned)NO_INSTANCE};
    return result;
}

NVML_API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t handle, unsigned* count,
                                                              struct process* out) {
    return nvmlDeviceGetComputeRunningProcesses_v3(handle, count, out);
}

NVML_API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t handle, unsigned* count,
                                                           struct process_v1* out) {
    DEVICE(index, handle);
    if (!count) return NVML_ERROR_INVALID_ARGUMENT;
    struct sim_holder holders[MAX_HOLDERS];
    size_t found = holders_of(index, holders);
    nvmlReturn_t result = room_for(out, count, found);
    for (size_t i = 0; !result && i < found; i++)
        out[i] = (struct process_v1){(unsigned)holders[i].pid, holders[i].bytes};
    return result;
}

NVML_API nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t handle, unsigned* count,
                                                               struct process* out) {
    DEVICE(index, handle);
    (void)index;
    (void)out;
    if (!count) return NVML_ERROR_INVALID_ARGUMENT;
    *count = 0;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t handle, unsigned* count,
                                                                 struct process* out) {
    return nvmlDeviceGetGraphicsRunningProcesses_v3(handle, count, out);
}

// ---- the bus, modes -----------------------------------------------------------------------------------------------
struct pci {
    char legacy_bus_id[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
};

NVML_API nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t handle, struct pci* out) {
    DEVICE(index, handle);
    if (!out) return NVML_ERROR_INVALID_ARGUMENT;
    *out = (struct pci){.bus = index + 1};
    snprintf(out->legacy_bus_id, sizeof out->legacy_bus_id, "0000:%02X:00.0", (index + 1) & 0xff);
    bus_id(index, out->bus_id);
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t handle, struct pci* out) {
    return nvmlDeviceGetPciInfo_v3(handle, out);
}

static nvmlReturn_t constant(nvmlDevice_t handle, unsigned* out, unsigned value) {
    DEVICE(index, handle);
    (void)index;
    if (!out) return NVML_ERROR_INVALID_ARGUMENT;
    *out = value;
    return NVML_SUCCESS;
}

#define CONSTANT(name, value)                                        \
    NVML_API nvmlReturn_t name(nvmlDevice_t handle, unsigned* out) { \
        return constant(handle, out, value);                         \
    }

CONSTANT(nvmlDeviceGetCurrPcieLinkGeneration, 5)
CONSTANT(nvmlDeviceGetMaxPcieLinkGeneration, 5)
CONSTANT(nvmlDeviceGetGpuMaxPcieLinkGeneration, 5)
CONSTANT(nvmlDeviceGetCurrPcieLinkWidth, 16)
CONSTANT(nvmlDeviceGetMaxPcieLinkWidth, 16)
CONSTANT(nvmlDeviceGetPersistenceMode, 1)
CONSTANT(nvmlDeviceGetComputeMode, 0)

// As a device that could do MIG and has it switched off.
NVML_API nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t handle, unsigned* current, unsigned* pending) {
    DEVICE(index, handle);
    (void)index;
    if (!current || !pending) return NVML_ERROR_INVALID_ARGUMENT;
    *current = *pending = 0;
    return NVML_SUCCESS;
}
