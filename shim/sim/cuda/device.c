// SPDX-License-Identifier: Apache-2.0
//
// Initialisation and devices. CUDA_VISIBLE_DEVICES takes indices and UUIDs, as in the driver.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "front.h"

enum { BUS_ID_SIZE = 13 };

static bool parse_uuid(const char* text, size_t length, unsigned* device) {
    for (*device = 0; *device < sim_machine_config()->devices; ++*device) {
        uint8_t uuid[16];
        char candidate[48];
        sim_machine_uuid(*device, uuid);
        int at = snprintf(candidate, sizeof candidate, "GPU-");
        for (int i = 0; i < 16; i++) {
            const char* dash = i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "";
            at += snprintf(candidate + at, sizeof candidate - (size_t)at, "%s%02x", dash, uuid[i]);
        }
        if (length <= (size_t)at && !strncmp(candidate, text, length)) return true;
    }
    return false;
}

static bool parse_device(const char* text, size_t length, unsigned* device) {
    if (length > 4 && !strncmp(text, "GPU-", 4)) return parse_uuid(text, length, device);
    char* end;
    unsigned long index = strtoul(text, &end, 10);
    if (end == text || end != text + length || index >= sim_machine_config()->devices) return false;
    *device = (unsigned)index;
    return true;
}

// The list ends at the first entry that names no device, as in the driver.
static unsigned visible_devices(unsigned devices[SIM_MAX_DEVICES]) {
    const char* list = getenv("CUDA_VISIBLE_DEVICES");
    unsigned count = 0;
    if (!list) {
        for (; count < sim_machine_config()->devices; count++) devices[count] = count;
        return count;
    }
    while (*list && count < SIM_MAX_DEVICES) {
        size_t length = strcspn(list, ",");
        if (!parse_device(list, length, &devices[count])) break;
        count++;
        list += length + (list[length] == ',');
    }
    return count;
}

SIM_API CUresult cuInit(unsigned flags) {
    if (flags) return CUDA_ERROR_INVALID_VALUE;
    sim_result result = sim_machine_open();
    unsigned devices[SIM_MAX_DEVICES];
    unsigned count = result ? 0 : visible_devices(devices);
    if (!result && !count) return CUDA_ERROR_NO_DEVICE;
    if (!result) result = sim_process_start(devices, count);
    if (!result) sim_process_ends_at_exit();
    if (result) return front_result(result);
    ENTER();
    return CUDA_SUCCESS;
}

SIM_API CUresult cuDriverGetVersion(int* version) {
    if (sim_process_ended()) return front_result(SIM_DEINITIALIZED);
    if (!version) return CUDA_ERROR_INVALID_VALUE;
    *version = FRONT_DRIVER_VERSION;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuDeviceGetCount(int* count) {
    ENTER();
    if (!count) return CUDA_ERROR_INVALID_VALUE;
    *count = (int)sim_device_count();
    return CUDA_SUCCESS;
}

SIM_API CUresult cuDeviceGet(CUdevice* device, int ordinal) {
    ENTER();
    if (!device) return CUDA_ERROR_INVALID_VALUE;
    DEVICE(ordinal);
    *device = ordinal;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuDeviceGetName(char* name, int size, CUdevice device) {
    ENTER();
    if (!name || size <= 0) return CUDA_ERROR_INVALID_VALUE;
    DEVICE(device);
    snprintf(name, (size_t)size, "NVIDIA SIMULATED GPU");
    return CUDA_SUCCESS;
}

SIM_API CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice device) {
    ENTER();
    if (!bytes) return CUDA_ERROR_INVALID_VALUE;
    DEVICE(device);
    *bytes = sim_machine_config()->memory;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
    ENTER();
    if (!uuid) return CUDA_ERROR_INVALID_VALUE;
    DEVICE(device);
    sim_machine_uuid(sim_device_real((unsigned)device), (uint8_t*)uuid->bytes);
    return CUDA_SUCCESS;
}

SIM_API CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
    return cuDeviceGetUuid_v2(uuid, device);
}

SIM_API CUresult cuDeviceGetPCIBusId(char* text, int size, CUdevice device) {
    ENTER();
    if (!text || size < BUS_ID_SIZE) return CUDA_ERROR_INVALID_VALUE;
    DEVICE(device);
    snprintf(text, (size_t)size, "0000:%02X:00.0", sim_device_real((unsigned)device) + 1);
    return CUDA_SUCCESS;
}

SIM_API CUresult cuDeviceGetByPCIBusId(CUdevice* device, const char* text) {
    ENTER();
    unsigned domain, bus;
    if (!device || !text || sscanf(text, "%x:%x", &domain, &bus) != 2) return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < sim_device_count(); i++) {
        if (domain || sim_device_real(i) + 1 != bus) continue;
        *device = (CUdevice)i;
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_DEVICE;
}

SIM_API CUresult cuDeviceComputeCapability(int* major, int* minor, CUdevice device) {
    ENTER();
    if (!major || !minor) return CUDA_ERROR_INVALID_VALUE;
    DEVICE(device);
    *major = 9;
    *minor = 0;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuDeviceGetLuid(char* luid, unsigned* mask, CUdevice device) {
    ENTER();
    return CUDA_ERROR_NOT_SUPPORTED;
}

// What a device of this kind answers; attributes not named here are 0, as for a feature it lacks.
static const struct {
    short attribute;
    int value;
} attributes[] = {
#define ATTRIBUTE(number, name, value) {number, value},
#include "attributes.def"
#undef ATTRIBUTE
};

enum {
    ATTRIBUTE_PCI_BUS = 33,
    ATTRIBUTE_POSIX_FD = 103,
    ATTRIBUTE_FABRIC = 128,
    ATTRIBUTE_MULTICAST = 132,
    ATTRIBUTE_MAX = 148
};

SIM_API CUresult cuDeviceGetAttribute(int* value, int attribute, CUdevice device) {
    ENTER();
    if (!value || attribute <= 0 || attribute >= ATTRIBUTE_MAX) return CUDA_ERROR_INVALID_VALUE;
    DEVICE(device);
    *value = attribute == ATTRIBUTE_PCI_BUS ? (int)sim_device_real((unsigned)device) + 1 : 0;
    for (size_t i = 0; i < sizeof attributes / sizeof *attributes; i++)
        if (attributes[i].attribute == attribute) *value = attributes[i].value;
    if (attribute == ATTRIBUTE_FABRIC && sim_machine_has_quirk(SIM_QUIRK_FABRIC)) *value = 1;
    if (attribute == ATTRIBUTE_MULTICAST && sim_machine_has_quirk(SIM_QUIRK_MULTICAST)) *value = 1;
    if (attribute == ATTRIBUTE_POSIX_FD && sim_machine_has_quirk(SIM_QUIRK_NOEXPORT)) *value = 0;
    return CUDA_SUCCESS;
}
