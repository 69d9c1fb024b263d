// SPDX-License-Identifier: Apache-2.0
//
// Legacy interprocess memory: a blob names the physical allocation and the place in it.
#include <string.h>

#include "front.h"

#define IPC_MAGIC 0x4350494d49534348ull  // "HCSIMIPC"

struct blob {
    uint64_t magic;
    struct sim_entry entry;
    uint64_t offset;
    uint64_t size;
};

_Static_assert(sizeof(struct blob) <= sizeof(hipIpcMemHandle_t), "the blob fits");

// Memory that the program mapped itself, or that came from a pool, has no handle.
hipError_t sim_hipIpcGetMemHandle(hipIpcMemHandle_t* handle, void* pointer) {
    if (!handle) return hipErrorInvalidValue;
    LOCK();
    const struct sim_allocation* found = sim_allocation_find((uintptr_t)pointer);
    const struct sim_mapping* mapping = sim_mapping_find((uintptr_t)pointer);
    if (!found || !mapping || found->kind != SIM_ALLOCATION_DEVICE) return hipErrorInvalidValue;
    sim_result result = sim_physical_publish(mapping->physical);
    if (result) return front_result(result);
    struct blob blob = {.magic = IPC_MAGIC,
                        .entry = mapping->physical->entry,
                        .offset = found->range.start - mapping->range.start,
                        .size = found->range.size};
    memset(handle, 0, sizeof *handle);
    memcpy(handle, &blob, sizeof blob);
    return hipSuccess;
}

hipError_t sim_hipIpcOpenMemHandle(void** pointer, hipIpcMemHandle_t handle, unsigned int flags) {
    struct blob blob;
    memcpy(&blob, &handle, sizeof blob);
    bool ours = blob.magic == IPC_MAGIC && blob.entry.slot < SIM_ENTRIES;
    if (!pointer || flags != hipIpcMemLazyEnablePeerAccess || !ours) return hipErrorInvalidValue;
    LOCK();
    CONTEXT(context);
    struct sim_allocation* made;
    sim_result result = sim_allocation_open(context, &blob.entry, blob.offset, blob.size, &made);
    if (!result) *pointer = (void*)made->range.start;
    return front_result(result);
}

hipError_t sim_hipIpcCloseMemHandle(void* pointer) {
    LOCK();
    return front_result(sim_allocation_close((uintptr_t)pointer));
}

hipError_t sim_hipIpcGetEventHandle(hipIpcEventHandle_t* handle, hipEvent_t event) {
    return hipErrorNotSupported;
}

hipError_t sim_hipIpcOpenEventHandle(hipEvent_t* event, hipIpcEventHandle_t handle) {
    return hipErrorNotSupported;
}
