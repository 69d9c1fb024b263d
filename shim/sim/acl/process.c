// SPDX-License-Identifier: Apache-2.0
//
// The runtime in this process: initialisation, devices, contexts. ASCEND_RT_VISIBLE_DEVICES takes indices.
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "front.h"

static bool initialised;  // with sim_lock

// Ascend has no call that reaches into another process: there is no checkpoint service to start.
bool sim_front_start(void) {
    return true;
}

// The list ends at the first entry that names no device.
static unsigned visible_devices(unsigned devices[SIM_MAX_DEVICES]) {
    const char* list = getenv("ASCEND_RT_VISIBLE_DEVICES");
    unsigned all = sim_machine_config()->devices, count = 0;
    if (!list) {
        for (; count < all; count++) devices[count] = count;
        return count;
    }
    while (*list && count < SIM_MAX_DEVICES) {
        char* end;
        unsigned long index = strtoul(list, &end, 10);
        if (end == list || (*end && *end != ',') || index >= all) break;
        devices[count++] = (unsigned)index;
        list = end + (*end == ',');
    }
    return count;
}

sim_result front_start(void) {
    if (sim_process_started()) return SIM_OK;
    sim_result result = sim_machine_open();
    if (result) return result;
    unsigned devices[SIM_MAX_DEVICES];
    unsigned count = visible_devices(devices);
    return count ? sim_process_start(devices, count) : SIM_NO_DEVICE;
}

SIM_API aclError aclInit(const char* config) {
    LOOK();
    LOCK();
    if (initialised) return ACL_ERROR_REPEAT_INITIALIZE;
    initialised = true;
    return ACL_SUCCESS;
}

// However often it was set.
static sim_result reset_locked(unsigned device) {
    struct sim_context* context = sim_primary_of(device);
    if (context) context->retained = 0;
    return sim_primary_reset(device);
}

SIM_API aclError aclFinalize(void) {
    ENTER();
    LOCK();
    if (!initialised) return ACL_ERROR_REPEAT_FINALIZE;
    initialised = false;
    for (unsigned device = 0; device < sim_device_count(); device++) reset_locked(device);
    return ACL_SUCCESS;
}

// ---- devices --------------------------------------------------------------------------------------------------------
SIM_API aclError aclrtGetDeviceCount(uint32_t* count) {
    LOOK();
    REQUIRE(count);
    *count = sim_device_count();
    return ACL_SUCCESS;
}

SIM_API aclError aclrtSetDevice(int32_t device) {
    ENTER();
    DEVICE(device);
    LOCK();
    struct sim_context* context;
    sim_result result = sim_primary_retain((unsigned)device, &context);
    if (!result) sim_context_set_current(context);
    return front_result(result);
}

SIM_API aclError aclrtGetDevice(int32_t* device) {
    LOOK();
    REQUIRE(device);
    LOCK();
    const struct sim_context* context = sim_context_current();
    if (!context || !context->alive) return ACL_ERROR_RT_CONTEXT_NULL;
    *device = (int32_t)context->device;
    return ACL_SUCCESS;
}

SIM_API aclError aclrtResetDevice(int32_t device) {
    ENTER();
    DEVICE(device);
    LOCK();
    return front_result(sim_primary_release((unsigned)device));
}

SIM_API aclError aclrtResetDeviceForce(int32_t device) {
    ENTER();
    DEVICE(device);
    LOCK();
    const struct sim_context* context = sim_primary_of((unsigned)device);
    if (!context || !context->alive) return ACL_ERROR_RT_CONTEXT_NULL;
    return front_result(reset_locked((unsigned)device));
}

SIM_API aclError aclrtSynchronizeDevice(void) {
    LOOK();
    LOCK();
    CONTEXT(current);
    sim_result result = SIM_OK;
    for (struct sim_context* context = sim_contexts(); context && !result; context = context->next)
        if (context->alive && context->device == current->device) result = sim_context_synchronize(context);
    return front_result(result);
}

SIM_API aclError aclrtDeviceGetBareTgid(int32_t* pid) {
    LOOK();
    REQUIRE(pid);
    *pid = getpid();
    return ACL_SUCCESS;
}

SIM_API aclError aclrtDeviceGetUuid(int32_t device, aclrtUuid* out) {
    LOOK();
    REQUIRE(out);
    DEVICE(device);
    sim_machine_uuid(sim_device_real((unsigned)device), (uint8_t*)out->bytes);
    return ACL_SUCCESS;
}

SIM_API aclError aclrtGetMemInfo(aclrtMemAttr attribute, size_t* free, size_t* total) {
    LOOK();
    REQUIRE(free && total && (attribute == ACL_HBM_MEM || front_is_device_memory(attribute)));
    LOCK();
    CONTEXT(context);
    *total = sim_machine_config()->memory;
    *free = *total - sim_machine_used(sim_device_real(context->device));
    return ACL_SUCCESS;
}

// ---- peers ----------------------------------------------------------------------------------------------------------
SIM_API aclError aclrtDeviceCanAccessPeer(int32_t* can, int32_t device, int32_t peer) {
    ENTER();
    REQUIRE(can && device != peer);
    DEVICE(device);
    DEVICE(peer);
    *can = sim_device_reaches((unsigned)device, (unsigned)peer);
    return ACL_SUCCESS;
}

static aclError set_peer(int32_t peer, bool enabled) {
    DEVICE(peer);
    LOCK();
    CONTEXT(context);
    REQUIRE((unsigned)peer != context->device);
    if (enabled && !sim_device_reaches(context->device, (unsigned)peer)) return front_result(SIM_NOT_SUPPORTED);
    uint32_t bit = 1u << peer;
    context->peers = enabled ? context->peers | bit : context->peers & ~bit;
    return ACL_SUCCESS;
}

SIM_API aclError aclrtDeviceEnablePeerAccess(int32_t peer, uint32_t flags) {
    LOOK();
    REQUIRE(!flags);
    return set_peer(peer, true);
}

SIM_API aclError aclrtDeviceDisablePeerAccess(int32_t peer) {
    LOOK();
    return set_peer(peer, false);
}

// ---- contexts -------------------------------------------------------------------------------------------------------
SIM_API aclError aclrtCreateContext(aclrtContext* out, int32_t device) {
    ENTER();
    REQUIRE(out);
    DEVICE(device);
    LOCK();
    struct sim_context* made;
    sim_result result = sim_context_create((unsigned)device, 0, &made);
    if (result) return front_result(result);
    sim_context_set_current(made);
    *out = made;
    return ACL_SUCCESS;
}

SIM_API aclError aclrtDestroyContext(aclrtContext handle) {
    ENTER();
    LOCK();
    REQUIRE(sim_object_is_locked(handle, SIM_CONTEXT));
    return front_result(sim_context_destroy(handle));
}

SIM_API aclError aclrtSetCurrentContext(aclrtContext handle) {
    LOOK();
    LOCK();
    REQUIRE(sim_object_is_locked(handle, SIM_CONTEXT));
    sim_context_set_current(handle);
    return ACL_SUCCESS;
}

SIM_API aclError aclrtGetCurrentContext(aclrtContext* out) {
    LOOK();
    REQUIRE(out);
    LOCK();
    *out = sim_context_current();
    return *out ? ACL_SUCCESS : ACL_ERROR_RT_CONTEXT_NULL;
}
