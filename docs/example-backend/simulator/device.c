// SPDX-License-Identifier: Apache-2.0
//
// Devices of the simulated acme driver, and control checkpoints of other processes.
#include <stdio.h>

#include "front.h"

acmeResult front_result(sim_result result) {
    if (result >= SIM_VENDOR_BASE) return (acmeResult)(result - SIM_VENDOR_BASE);
    switch (result) {
        case SIM_OK:
            return ACME_OK;
        case SIM_OUT_OF_MEMORY:
            return ACME_NO_MEMORY;
        case SIM_NOT_READY:
            return ACME_NOT_READY;
        case SIM_NOT_INITIALIZED:
            return ACME_NOT_STARTED;
        case SIM_NO_DEVICE:
        case SIM_INVALID_DEVICE:
            return ACME_NO_DEVICE;
        case SIM_ILLEGAL_STATE:
            return ACME_WRONG_STATE;
        case SIM_ILLEGAL_ADDRESS:
            return ACME_FAULT;
        case SIM_OPERATING_SYSTEM:
            return ACME_UNKNOWN;
        default:
            return ACME_INVALID;
    }
}

ACME_API acmeResult acmeInit(void) {
    sim_result result = sim_machine_open();
    unsigned devices[SIM_MAX_DEVICES], count = result ? 0 : sim_machine_config()->devices;
    for (unsigned device = 0; device < count; device++) devices[device] = device;
    return front_result(result ? result : sim_process_start(devices, count));
}

ACME_API acmeResult acmeDeviceCount(int* count) {
    ENTER();
    REQUIRE(count);
    *count = (int)sim_device_count();
    return ACME_OK;
}

ACME_API acmeResult acmeDeviceName(int device, char* name, size_t size) {
    ENTER();
    DEVICE(device);
    REQUIRE(name && size);
    snprintf(name, size, "Acme Anvil (SIMULATED)");
    return ACME_OK;
}

ACME_API acmeResult acmeDeviceUuid(int device, uint8_t uuid[16]) {
    ENTER();
    DEVICE(device);
    REQUIRE(uuid);
    sim_machine_uuid(sim_device_real((unsigned)device), uuid);
    return ACME_OK;
}

ACME_API acmeResult acmeDeviceMemory(int device, uint64_t* used, uint64_t* total) {
    ENTER();
    DEVICE(device);
    REQUIRE(used && total);
    *used = sim_machine_used(sim_device_real((unsigned)device));
    *total = sim_machine_config()->memory;
    return ACME_OK;
}

ACME_API acmeResult acmeDeviceUsers(int device, int* pids, uint64_t* bytes, size_t* count) {
    ENTER();
    DEVICE(device);
    REQUIRE(pids && bytes && count);
    struct sim_holder holders[256];
    size_t found = sim_machine_holders(sim_device_real((unsigned)device), holders, 256);
    if (found > *count) found = *count;
    for (size_t i = 0; i < found; i++) {
        pids[i] = holders[i].pid;
        bytes[i] = holders[i].bytes;
    }
    *count = found;
    return ACME_OK;
}

ACME_API acmeResult acmeSetDevice(int device) {
    ENTER();
    DEVICE(device);
    struct sim_context* context = sim_primary_of((unsigned)device);
    sim_result result = context && context->alive ? SIM_OK : sim_primary_retain((unsigned)device, &context);
    if (!result) sim_context_set_current(context);
    return front_result(result);
}

ACME_API acmeResult acmeResetDevice(int device) {
    ENTER();
    DEVICE(device);
    return front_result(sim_primary_reset((unsigned)device));
}

ACME_API acmeResult acmeSynchronize(int device) {
    ENTER();
    DEVICE(device);
    struct sim_context* context = sim_primary_of((unsigned)device);
    return context && context->alive ? front_result(sim_context_synchronize(context)) : ACME_OK;
}

// ---- other processes: not held back by our own lock ---------------------------------------------------------------
static acmeResult ask(int pid, enum sim_service_operation operation, unsigned timeout_ms, int* value) {
    if (!sim_process_started()) return ACME_NOT_STARTED;
    struct sim_service_request request = {.operation = operation, .timeout_ms = timeout_ms};
    struct sim_service_reply reply = {0};
    sim_result result = sim_service_ask(pid, &request, &reply);
    if (!result && value) *value = reply.value;
    return front_result(result);
}

ACME_API acmeResult acmeProcessState(int pid, int* state) {
    REQUIRE(state);
    return ask(pid, SIM_SERVICE_STATE, 0, state);
}

ACME_API acmeResult acmeProcessLock(int pid, unsigned timeout_ms) {
    return ask(pid, SIM_SERVICE_LOCK, timeout_ms, NULL);
}

ACME_API acmeResult acmeProcessCheckpoint(int pid) {
    return ask(pid, SIM_SERVICE_CHECKPOINT, 0, NULL);
}

ACME_API acmeResult acmeProcessRestore(int pid) {
    return ask(pid, SIM_SERVICE_RESTORE, 0, NULL);
}

ACME_API acmeResult acmeProcessUnlock(int pid) {
    return ask(pid, SIM_SERVICE_UNLOCK, 0, NULL);
}
