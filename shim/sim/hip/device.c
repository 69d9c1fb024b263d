// SPDX-License-Identifier: Apache-2.0
//
// Devices. Each thread has a current one; its context is made when something first needs it.
#include <stdio.h>
#include <string.h>

#include "capture.h"
#include "front.h"

#define NAME "AMD SIMULATED GPU"

enum { BUS_ID_SIZE = 13 };

static _Thread_local unsigned current;

// ---- the current device -------------------------------------------------------------------------------------------
unsigned front_device(void) {
    return current;
}

hipError_t front_context_of(unsigned device, struct sim_context** context) {
    *context = sim_primary_of(device);
    if (!*context) return hipErrorOutOfMemory;
    sim_result made = (*context)->alive ? SIM_OK : sim_primary_retain(device, context);
    return front_result(made ? made : (*context)->error);
}

hipError_t front_context(struct sim_context** context) {
    return front_context_of(current, context);
}

hipError_t sim_hipSetDevice(int device) {
    DEVICE(device);
    current = (unsigned)device;
    return hipSuccess;
}

hipError_t sim_hipGetDevice(int* device) {
    if (!device) return hipErrorInvalidValue;
    *device = (int)current;
    return hipSuccess;
}

hipError_t sim_hipDeviceSynchronize(void) {
    LOCK();
    CONTEXT(context);
    sim_result captures = sim_capture_check_context_locked(context);
    return front_result(captures ? captures : sim_context_synchronize(context));
}

hipError_t sim_hipDeviceReset(void) {
    LOCK();
    return front_result(sim_primary_reset(current));
}

// As ROCm's.
hipError_t sim_hipDevicePrimaryCtxReset(hipDevice_t device) {
    (void)device;
    return hipSuccess;
}

// ---- the runtime --------------------------------------------------------------------------------------------------
hipError_t sim_hipInit(unsigned int flags) {
    return flags ? hipErrorInvalidValue : hipSuccess;
}

// Both answer without a device, too.
static hipError_t get_version(int* version) {
    if (!version) return hipErrorInvalidValue;
    if (sim_machine_open()) return hipErrorOperatingSystem;
    *version = (int)sim_machine_config()->hip_version;
    return hipSuccess;
}

SIM_API hipError_t hipRuntimeGetVersion(int* version) {
    return get_version(version);
}

SIM_API hipError_t hipDriverGetVersion(int* version) {
    return get_version(version);
}

static hipError_t count_devices(int* count, hipError_t begun) {
    if (!count) return hipErrorInvalidValue;
    *count = begun ? 0 : (int)sim_device_count();
    return begun == hipErrorInvalidDevice ? hipErrorNoDevice : begun;
}

SIM_API hipError_t hipGetDeviceCount(int* count) {
    return front_end(count_devices(count, front_begin(__func__)));
}

// ---- what a device is ---------------------------------------------------------------------------------------------
hipError_t sim_hipDeviceGet(hipDevice_t* device, int ordinal) {
    if (!device) return hipErrorInvalidValue;
    DEVICE(ordinal);
    *device = ordinal;
    return hipSuccess;
}

hipError_t sim_hipDeviceGetName(char* name, int size, hipDevice_t device) {
    DEVICE(device);
    if (!name || size <= 0) return hipErrorInvalidValue;
    snprintf(name, (size_t)size, NAME);
    return hipSuccess;
}

// Sixteen letters: the unique id in hexadecimal, as the tools show it.
static void put_uuid(char bytes[16], unsigned device) {
    char text[17];
    snprintf(text, sizeof text, "%016llx", (unsigned long long)sim_machine_unique_id(sim_device_real(device)));
    memcpy(bytes, text, 16);
}

hipError_t sim_hipDeviceGetUuid(hipUUID* uuid, hipDevice_t device) {
    if (!uuid) return hipErrorInvalidValue;
    DEVICE(device);
    put_uuid(uuid->bytes, (unsigned)device);
    return hipSuccess;
}

hipError_t sim_hipDeviceTotalMem(size_t* bytes, hipDevice_t device) {
    DEVICE(device);
    if (!bytes) return hipErrorInvalidValue;
    *bytes = sim_machine_config()->memory;
    return hipSuccess;
}

static int bus_of(int device) {
    return (int)sim_device_real((unsigned)device) + 1;
}

hipError_t sim_hipDeviceGetPCIBusId(char* text, int size, int device) {
    DEVICE(device);
    if (!text || size < BUS_ID_SIZE) return hipErrorInvalidValue;
    snprintf(text, (size_t)size, "0000:%02x:00.0", (unsigned)bus_of(device));
    return hipSuccess;
}

hipError_t sim_hipDeviceGetByPCIBusId(int* device, const char* text) {
    unsigned domain, bus;
    if (!device || !text || sscanf(text, "%x:%x", &domain, &bus) != 2) return hipErrorInvalidValue;
    for (unsigned i = 0; i < sim_device_count(); i++) {
        if (domain || (int)bus != bus_of((int)i)) continue;
        *device = (int)i;
        return hipSuccess;
    }
    return hipErrorInvalidValue;
}

// ---- attributes ---------------------------------------------------------------------------------------------------
static const struct {
    unsigned attribute;
    int value;
} attributes[] = {
#define ATTRIBUTE(number, name, value) {number, value},
#define PROPERTY(number, name, value, field) {number, value},
#include "attributes.def"
#undef ATTRIBUTE
#undef PROPERTY
};

enum { COMMON_END = 93, AMD_BEGIN = 10000, AMD_END = 10021 };
enum { MAJOR = 23, MINOR = 61 };

static int attribute_value(unsigned attribute) {
    for (size_t i = 0; i < sizeof attributes / sizeof *attributes; i++)
        if (attributes[i].attribute == attribute) return attributes[i].value;
    return 0;
}

hipError_t sim_hipDeviceGetAttribute(int* value, hipDeviceAttribute_t attribute, int device) {
    bool known = attribute < COMMON_END || (attribute >= AMD_BEGIN && attribute < AMD_END);
    if (!value || !known) return hipErrorInvalidValue;
    DEVICE(device);
    *value = attribute == hipDeviceAttributePciBusId ? bus_of(device) : attribute_value(attribute);
    return hipSuccess;
}

hipError_t sim_hipDeviceComputeCapability(int* major, int* minor, hipDevice_t device) {
    if (!major || !minor) return hipErrorInvalidValue;
    DEVICE(device);
    *major = attribute_value(MAJOR);
    *minor = attribute_value(MINOR);
    return hipSuccess;
}

// ---- properties: the attributes once more -------------------------------------------------------------------------
static void put_identity(hipDeviceProp_t* out, int device) {
    snprintf(out->name, sizeof out->name, NAME);
    snprintf(out->gcnArchName, sizeof out->gcnArchName, "gfx942:sramecc+:xnack-");
    put_uuid(out->uuid.bytes, (unsigned)device);
    out->pciBusID = bus_of(device);
    out->totalGlobalMem = sim_machine_config()->memory;
    out->memoryPoolSupportedHandleTypes = hipMemHandleTypePosixFileDescriptor;
}

static void put_numbers(hipDeviceProp_t* out) {
#define ATTRIBUTE(number, name, value)
#define PROPERTY(number, name, value, field) out->field = value;
#include "attributes.def"
#undef ATTRIBUTE
#undef PROPERTY
}

hipError_t sim_hipGetDevicePropertiesR0600(hipDeviceProp_t* out, int device) {
    if (!out) return hipErrorInvalidValue;
    DEVICE(device);
    memset(out, 0, sizeof *out);
    put_identity(out, device);
    put_numbers(out);
    return hipSuccess;
}

// ---- settings -----------------------------------------------------------------------------------------------------
enum { DEVICE_FLAGS = 0x1f, LIMITS = 3 };

hipError_t sim_hipSetDeviceFlags(unsigned int flags) {
    if (flags & ~(unsigned)DEVICE_FLAGS) return hipErrorInvalidValue;
    LOCK();
    struct sim_context* primary = sim_primary_of(current);
    if (!primary) return hipErrorOutOfMemory;
    primary->flags = flags;
    return hipSuccess;
}

hipError_t sim_hipGetDeviceFlags(unsigned int* flags) {
    if (!flags) return hipErrorInvalidValue;
    LOCK();
    const struct sim_context* primary = sim_primary_of(current);
    *flags = primary ? primary->flags : 0;
    return hipSuccess;
}

hipError_t sim_hipDeviceGetLimit(size_t* value, hipLimit_t limit) {
    static const size_t limits[LIMITS] = {1024, 1048576, 8388608};
    if (!value) return hipErrorInvalidValue;
    if (limit >= LIMITS) return hipErrorUnsupportedLimit;
    *value = limits[limit];
    return hipSuccess;
}

// ---- peers --------------------------------------------------------------------------------------------------------
enum { LINK_XGMI = 4 };

hipError_t sim_hipDeviceCanAccessPeer(int* can, int device, int peer) {
    if (!can) return hipErrorInvalidValue;
    DEVICE(device);
    DEVICE(peer);
    *can = device != peer && sim_device_reaches((unsigned)device, (unsigned)peer);
    return hipSuccess;
}

hipError_t sim_hipDeviceEnablePeerAccess(int peer, unsigned int flags) {
    if (flags) return hipErrorInvalidValue;
    DEVICE(peer);
    LOCK();
    CONTEXT(context);
    if ((unsigned)peer == current) return hipErrorInvalidDevice;
    if (!sim_device_reaches(current, (unsigned)peer)) return front_result(SIM_PEER_UNSUPPORTED);
    if (context->peers >> peer & 1) return hipErrorPeerAccessAlreadyEnabled;
    context->peers |= 1u << peer;
    return hipSuccess;
}

hipError_t sim_hipDeviceDisablePeerAccess(int peer) {
    DEVICE(peer);
    LOCK();
    CONTEXT(context);
    if (!(context->peers >> peer & 1)) return hipErrorPeerAccessNotEnabled;
    context->peers &= ~(1u << peer);
    return hipSuccess;
}

hipError_t sim_hipDeviceGetP2PAttribute(int* value, hipDeviceP2PAttr attribute, int device, int peer) {
    if (!value || attribute > hipDevP2PAttrHipArrayAccessSupported) return hipErrorInvalidValue;
    DEVICE(device);
    DEVICE(peer);
    if (device == peer) return hipErrorInvalidDevice;
    bool told = attribute == hipDevP2PAttrAccessSupported || attribute == hipDevP2PAttrNativeAtomicSupported;
    *value = told && sim_device_reaches((unsigned)device, (unsigned)peer);
    return hipSuccess;
}

hipError_t sim_hipExtGetLinkTypeAndHopCount(int device, int peer, uint32_t* type, uint32_t* hops) {
    if (!type || !hops || device == peer) return hipErrorInvalidValue;
    DEVICE(device);
    DEVICE(peer);
    *type = LINK_XGMI;
    *hops = 1;
    return hipSuccess;
}
