// SPDX-License-Identifier: Apache-2.0
//
// Legacy interprocess memory and events. A blob names the physical allocation and the place in it, or a signal.
#include <string.h>
#include <unistd.h>

#include "front.h"

#define IPC_MAGIC 0x4350494d49534347ull  // "GCSIMIPC"

struct blob {
    uint64_t magic;
    struct sim_entry entry;
    uint64_t offset;
    uint64_t size;
    uint32_t pid;
};

_Static_assert(sizeof(struct blob) <= sizeof(CUipcMemHandle), "the blob fits");

SIM_API CUresult cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr pointer) {
    ENTER();
    if (!handle) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    CONTEXT(context);
    (void)context;
    const struct sim_allocation* found = sim_allocation_find(pointer);
    const struct sim_mapping* mapping = sim_mapping_find(pointer);
    // Memory of the program's own mappings and of pools has no legacy handle.
    if (!found || !mapping || found->kind != SIM_ALLOCATION_DEVICE) return CUDA_ERROR_INVALID_VALUE;
    sim_result result = sim_physical_publish(mapping->physical);
    if (result) return front_result(result);
    struct blob blob = {.magic = IPC_MAGIC,
                        .entry = mapping->physical->entry,
                        .offset = found->range.start - mapping->range.start,
                        .size = found->range.size,
                        .pid = (uint32_t)getpid()};
    memset(handle, 0, sizeof *handle);
    memcpy(handle, &blob, sizeof blob);
    return CUDA_SUCCESS;
}

SIM_API CUresult cuIpcOpenMemHandle_v2(CUdeviceptr* pointer, CUipcMemHandle handle, unsigned flags) {
    ENTER();
    struct blob blob;
    memcpy(&blob, &handle, sizeof blob);
    if (!pointer || flags != 1 || blob.magic != IPC_MAGIC || blob.entry.slot >= SIM_ENTRIES)
        return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    CONTEXT(context);
    struct sim_allocation* made;
    sim_result result = sim_allocation_open(context, &blob.entry, blob.offset, blob.size, &made);
    if (!result) *pointer = made->range.start;
    return front_result(result);
}

SIM_API CUresult cuIpcOpenMemHandle(CUdeviceptr* pointer, CUipcMemHandle handle, unsigned flags) {
    return cuIpcOpenMemHandle_v2(pointer, handle, flags);
}

SIM_API CUresult cuIpcCloseMemHandle(CUdeviceptr pointer) {
    ENTER();
    LOCK();
    return front_result(sim_allocation_close(pointer));
}

// ---- events -------------------------------------------------------------------------------------------------------
// The errors and their order are those of an H100 (r580). There many a name of no event can be opened as well.
struct event_blob {
    uint64_t magic;
    uint64_t slot;
    uint64_t generation;
};

_Static_assert(sizeof(struct event_blob) <= sizeof(CUipcEventHandle), "the blob fits");

SIM_API CUresult cuIpcGetEventHandle(CUipcEventHandle* handle, CUevent event) {
    ENTER();
    if (!handle) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    EVENT(event);
    if (!(event->flags & EVENT_INTERPROCESS) || event->opened) return CUDA_ERROR_INVALID_HANDLE;
    sim_result result = sim_event_share(event);
    if (result) return front_result(result);
    struct event_blob blob = {IPC_MAGIC, event->signal.slot, event->signal.generation};
    memset(handle, 0, sizeof *handle);
    memcpy(handle, &blob, sizeof blob);
    return CUDA_SUCCESS;
}

SIM_API CUresult cuIpcOpenEventHandle(CUevent* event, CUipcEventHandle handle) {
    ENTER();
    struct event_blob blob;
    memcpy(&blob, &handle, sizeof blob);
    if (!event) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    CONTEXT(context);
    if (blob.magic != IPC_MAGIC) return CUDA_ERROR_MAP_FAILED;
    struct sim_entry signal = {(uint32_t)blob.slot, blob.generation};
    sim_result result = sim_event_open(context, EVENT_INTERPROCESS | EVENT_DISABLE_TIMING, &signal, event);
    return result == SIM_NOT_FOUND ? CUDA_ERROR_MAP_FAILED : front_result(result);
}
