// SPDX-License-Identifier: Apache-2.0
//
// ROCm SMI over the simulated machine: what it takes to list AMD devices, their memory, and its users. Needs no
// context, and counts exactly, dead processes included.
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "fault.h"
#include "machine.h"

#define RSMI_API __attribute__((visibility("default")))

typedef int rsmi_status_t;

enum {
    RSMI_STATUS_SUCCESS = 0,
    RSMI_STATUS_INVALID_ARGS = 1,
    RSMI_STATUS_NOT_SUPPORTED = 2,
    RSMI_STATUS_INIT_ERROR = 8,
    RSMI_STATUS_NOT_FOUND = 10,
    RSMI_STATUS_INSUFFICIENT_SIZE = 11,
};

enum { MEMORY_VRAM = 0, MEMORY_VISIBLE_VRAM = 1, MEMORY_GTT = 2, MAX_HOLDERS = 1024 };

typedef struct {
    uint32_t process_id;
    uint32_t pasid;
    uint64_t vram_usage;  // bytes
    uint64_t sdma_usage;  // microseconds
    uint32_t cu_occupancy;
} rsmi_process_info_t;

typedef struct {
    uint32_t major;
    uint32_t minor;
    uint32_t patch;
    const char* build;
} rsmi_version_t;

static atomic_int initialised;

// The call's name is what faults are asked for by.
#define ENTER()                                                             \
    do {                                                                    \
        if (!atomic_load(&initialised)) return RSMI_STATUS_INIT_ERROR;      \
        sim_result injected_ = sim_fault(__func__);                         \
        if (injected_) return (rsmi_status_t)(injected_ - SIM_VENDOR_BASE); \
    } while (0)
#define DEVICE(index) \
    if ((index) >= sim_machine_config()->devices) return RSMI_STATUS_INVALID_ARGS

RSMI_API rsmi_status_t rsmi_init(uint64_t flags) {
    (void)flags;
    if (sim_machine_open()) return RSMI_STATUS_INIT_ERROR;
    sim_result injected = sim_fault(__func__);
    if (injected) return (rsmi_status_t)(injected - SIM_VENDOR_BASE);
    atomic_fetch_add(&initialised, 1);
    return RSMI_STATUS_SUCCESS;
}

RSMI_API rsmi_status_t rsmi_shut_down(void) {
    if (!atomic_load(&initialised)) return RSMI_STATUS_INIT_ERROR;
    atomic_fetch_sub(&initialised, 1);
    return RSMI_STATUS_SUCCESS;
}

RSMI_API rsmi_status_t rsmi_version_get(rsmi_version_t* version) {
    if (!version) return RSMI_STATUS_INVALID_ARGS;
    *version = (rsmi_version_t){7, 8, 0, "simulated"};
    return RSMI_STATUS_SUCCESS;
}

RSMI_API rsmi_status_t rsmi_status_string(rsmi_status_t status, const char** text) {
    if (!text) return RSMI_STATUS_INVALID_ARGS;
    *text = status == RSMI_STATUS_SUCCESS ? "RSMI_STATUS_SUCCESS" : "an error of the simulated ROCm SMI";
    return RSMI_STATUS_SUCCESS;
}

// ---- devices ------------------------------------------------------------------------------------------------------
RSMI_API rsmi_status_t rsmi_num_monitor_devices(uint32_t* count) {
    ENTER();
    if (!count) return RSMI_STATUS_INVALID_ARGS;
    *count = sim_machine_config()->devices;
    return RSMI_STATUS_SUCCESS;
}

RSMI_API rsmi_status_t rsmi_dev_name_get(uint32_t device, char* name, size_t size) {
    ENTER();
    DEVICE(device);
    if (!name || !size) return RSMI_STATUS_INVALID_ARGS;
    int length = snprintf(name, size, "AMD SIMULATED GPU");
    return (size_t)length < size ? RSMI_STATUS_SUCCESS : RSMI_STATUS_INSUFFICIENT_SIZE;
}

RSMI_API rsmi_status_t rsmi_dev_unique_id_get(uint32_t device, uint64_t* id) {
    ENTER();
    DEVICE(device);
    if (!id) return RSMI_STATUS_INVALID_ARGS;
    *id = sim_machine_unique_id(device);
    return RSMI_STATUS_SUCCESS;
}

RSMI_API rsmi_status_t rsmi_dev_pci_id_get(uint32_t device, uint64_t* bdf) {
    ENTER();
    DEVICE(device);
    if (!bdf) return RSMI_STATUS_INVALID_ARGS;
    *bdf = (uint64_t)(device + 1) << 8;  // domain << 32 | bus << 8 | device << 3 | function
    return RSMI_STATUS_SUCCESS;
}

// ---- memory -------------------------------------------------------------------------------------------------------
RSMI_API rsmi_status_t rsmi_dev_memory_total_get(uint32_t device, int type, uint64_t* total) {
    ENTER();
    DEVICE(device);
    if (!total || type < MEMORY_VRAM || type > MEMORY_GTT) return RSMI_STATUS_INVALID_ARGS;
    *total = type == MEMORY_GTT ? 0 : sim_machine_config()->memory;
    return RSMI_STATUS_SUCCESS;
}

RSMI_API rsmi_status_t rsmi_dev_memory_usage_get(uint32_t device, int type, uint64_t* used) {
    ENTER();
    DEVICE(device);
    if (!used || type < MEMORY_VRAM || type > MEMORY_GTT) return RSMI_STATUS_INVALID_ARGS;
    *used = type == MEMORY_GTT ? 0 : sim_machine_used(device);
    return RSMI_STATUS_SUCCESS;
}

// ---- processes ----------------------------------------------------------------------------------------------------
static rsmi_process_info_t info_of(uint32_t pid, uint64_t bytes) {
    return (rsmi_process_info_t){.process_id = pid, .vram_usage = bytes};
}

static bool uses(uint32_t device, uint32_t pid, uint64_t* bytes) {
    struct sim_holder holders[MAX_HOLDERS];
    size_t count = sim_machine_holders(device, holders, MAX_HOLDERS);
    for (size_t i = 0; i < count && i < MAX_HOLDERS; i++) {
        if ((uint32_t)holders[i].pid != pid) continue;
        *bytes += holders[i].bytes;
        return true;
    }
    return false;
}

RSMI_API rsmi_status_t rsmi_compute_process_info_by_device_get(uint32_t pid, uint32_t device,
                                                               rsmi_process_info_t* info) {
    ENTER();
    DEVICE(device);
    if (!info) return RSMI_STATUS_INVALID_ARGS;
    uint64_t bytes = 0;
    if (!uses(device, pid, &bytes)) return RSMI_STATUS_NOT_FOUND;
    *info = info_of(pid, bytes);
    return RSMI_STATUS_SUCCESS;
}

RSMI_API rsmi_status_t rsmi_compute_process_info_by_pid_get(uint32_t pid, rsmi_process_info_t* info) {
    ENTER();
    if (!info) return RSMI_STATUS_INVALID_ARGS;
    uint64_t bytes = 0;
    bool found = false;
    for (uint32_t device = 0; device < sim_machine_config()->devices; device++)
        found = uses(device, pid, &bytes) || found;
    if (!found) return RSMI_STATUS_NOT_FOUND;
    *info = info_of(pid, bytes);
    return RSMI_STATUS_SUCCESS;
}

static void collect(uint32_t device, rsmi_process_info_t* infos, uint32_t capacity, uint32_t* count) {
    struct sim_holder holders[MAX_HOLDERS];
    size_t found = sim_machine_holders(device, holders, MAX_HOLDERS);
    for (size_t i = 0; i < found && i < MAX_HOLDERS; i++) {
        uint32_t pid = (uint32_t)holders[i].pid, known = 0;
        while (known < *count && known < capacity && infos[known].process_id != pid) known++;
        if (known < *count && known < capacity) {
            infos[known].vram_usage += holders[i].bytes;
            continue;
        }
        if (*count < capacity) infos[*count] = info_of(pid, holders[i].bytes);
        ++*count;
    }
}

// All processes; without a place to put them, how many there are.
RSMI_API rsmi_status_t rsmi_compute_process_info_get(rsmi_process_info_t* infos, uint32_t* count) {
    ENTER();
    if (!count) return RSMI_STATUS_INVALID_ARGS;
    rsmi_process_info_t scratch[MAX_HOLDERS];
    uint32_t capacity = infos ? *count : MAX_HOLDERS, found = 0;
    for (uint32_t device = 0; device < sim_machine_config()->devices; device++)
        collect(device, infos ? infos : scratch, capacity, &found);
    *count = found < capacity ? found : capacity;
    return found <= capacity ? RSMI_STATUS_SUCCESS : RSMI_STATUS_INSUFFICIENT_SIZE;
}
