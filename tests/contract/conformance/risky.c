// SPDX-License-Identifier: Apache-2.0
//
// What leaves a context, or the process, of no more use.
#include <unistd.h>

#include "conformance.h"

static CUdeviceptr reserved(size_t granules) {
    CUdeviceptr at = 0;
    need("reserve", cuMemAddressReserve(&at, granules * granularity(), 0, 0, 0));
    return at;
}

static CUdeviceptr mapped_without_access(void) {
    CUmemAllocationProp wanted = device_memory(1);
    CUhandle handle = 0;
    CUdeviceptr at = reserved(1);
    need("create", cuMemCreate(&handle, granularity(), &wanted, 0));
    need("map", cuMemMap(at, granularity(), 0, handle, 0));
    return at;
}

static void aftermath(const char* name) {
    char label[64];
    CUdeviceptr pointer = 0;
    snprintf(label, sizeof label, "%s_then_synchronize", name);
    RESULT(label, cuCtxSynchronize());
    snprintf(label, sizeof label, "%s_then_alloc", name);
    RESULT(label, cuMemAlloc_v2(&pointer, 4096));
    CUmemAllocationProp wanted = device_memory(1);
    CUhandle handle = 0;
    snprintf(label, sizeof label, "%s_then_create", name);
    RESULT(label, cuMemCreate(&handle, 2 * MiB, &wanted, 0));
    snprintf(label, sizeof label, "%s_then_reserve", name);
    RESULT(label, cuMemAddressReserve(&pointer, 2 * MiB, 0, 0, 0));
}

static void copy_reserved(void) {
    char byte;
    RESULT("copy_from_reserved", cuMemcpyDtoH_v2(&byte, reserved(1), 1));
    aftermath("copy_from_reserved");
}

static void set_reserved(void) {
    RESULT("set_reserved", cuMemsetD8_v2(reserved(1), 1, 16));
    aftermath("set_reserved");
}

static void copy_without_access(void) {
    char byte;
    RESULT("copy_without_access", cuMemcpyDtoH_v2(&byte, mapped_without_access(), 1));
    aftermath("copy_without_access");
}

static void set_without_access(void) {
    RESULT("set_without_access", cuMemsetD8_v2(mapped_without_access(), 1, 16));
    aftermath("set_without_access");
}

static void copy_read_only(void) {
    CUdeviceptr at = mapped_without_access();
    CUmemAccessDesc read = access_of(READ);
    char byte = 0;
    CUresult result = cuMemSetAccess(at, granularity(), &read, 1);
    RESULT("set_access_read_only", result);
    RESULT("copy_from_read_only", cuMemcpyDtoH_v2(&byte, at, 1));
    RESULT("copy_to_read_only", cuMemcpyHtoD_v2(at, &byte, 1));
    aftermath("copy_to_read_only");
}

static void destroyed_context(void) {
    CUcontext made = NULL, primary = NULL;
    CUstream stream = NULL;
    CUdeviceptr pointer = 0;
    need("primary", cuCtxGetCurrent(&primary));
    need("create", cuCtxCreate_v2(&made, 0, 0));
    need("stream", cuStreamCreate(&stream, 0));
    need("alloc", cuMemAlloc_v2(&pointer, 4 * MiB));
    need("destroy", cuCtxDestroy_v2(made));
    RESULT("set_destroyed_current", cuCtxSetCurrent(made));
    RESULT("destroyed_synchronize", cuCtxSynchronize());
}

static void reset_primary(void) {
    CUdeviceptr pointer = 0, other = 0;
    CUcontext current = NULL, again = NULL;
    unsigned flags;
    int active;
    need("alloc", cuMemAlloc_v2(&pointer, 4 * MiB));
    RESULT("reset", cuDevicePrimaryCtxReset_v2(0));
    need("state", cuDevicePrimaryCtxGetState(0, &flags, &active));
    VALUE("reset_active", active);
    RESULT("reset_current", cuCtxGetCurrent(&current));
    VALUE("reset_current_set", current != NULL);
    RESULT("reset_device", cuCtxGetDevice(&active));
    RESULT("reset_synchronize", cuCtxSynchronize());
    RESULT("reset_alloc", cuMemAlloc_v2(&other, 4096));
    RESULT("reset_range_of_lost", cuMemGetAddressRange_v2(&other, NULL, pointer));
    RESULT("reset_retain", cuDevicePrimaryCtxRetain(&again, 0));
    VALUE("reset_same_context", current == again);
    RESULT("reset_set_current", cuCtxSetCurrent(again));
    RESULT("reset_alloc_again", cuMemAlloc_v2(&other, 4096));
    RESULT("reset_release", cuDevicePrimaryCtxRelease_v2(0));
    need("state", cuDevicePrimaryCtxGetState(0, &flags, &active));
    VALUE("reset_released_active", active);
}

static void unmap_and_use(void) {
    CUdeviceptr at = mapped_without_access();
    CUmemAccessDesc both = access_of(READ_WRITE);
    char byte;
    need("access", cuMemSetAccess(at, granularity(), &both, 1));
    RESULT("mapped_set", cuMemsetD8_v2(at, 1, 16));
    need("synchronize", cuCtxSynchronize());
    RESULT("mapped_unmap", cuMemUnmap(at, granularity()));
    RESULT("copy_from_unmapped", cuMemcpyDtoH_v2(&byte, at, 1));
    aftermath("copy_from_unmapped");
}

// By the only thread of the process that is locked: may block for good, and then the alarm tells.
static void checkpoint_self(void) {
    int value = -1;
    alarm(8);
    RESULT("lock_self", cuCheckpointProcessLock(getpid(), NULL));
    RESULT("lock_twice", cuCheckpointProcessLock(getpid(), NULL));
    RESULT("restore_locked", cuCheckpointProcessRestore(getpid(), NULL));
    need("state", cuCheckpointProcessGetState(getpid(), &value));
    VALUE("state_locked", value);
    RESULT("unlock_self", cuCheckpointProcessUnlock(getpid(), NULL));
    RESULT("unlock_twice", cuCheckpointProcessUnlock(getpid(), NULL));
    RESULT("after_unlock", cuCtxSynchronize());
}

static CUdeviceptr freed(void) {
    CUdeviceptr pointer = 0;
    need("alloc", cuMemAlloc_v2(&pointer, 8192));
    need("free", cuMemFree_v2(pointer));
    return pointer;
}

static void copy_to_freed(void) {
    char bytes[100] = {0};
    RESULT("copy_to_freed", cuMemcpyHtoD_v2(freed(), bytes, sizeof bytes));
    aftermath("copy_to_freed");
}

static void copy_from_freed(void) {
    char bytes[100];
    RESULT("copy_from_freed", cuMemcpyDtoH_v2(bytes, freed(), sizeof bytes));
    aftermath("copy_from_freed");
}

static void set_freed(void) {
    RESULT("set_freed", cuMemsetD8_v2(freed(), 1, 100));
    aftermath("set_freed");
}

static void past_the_end(void) {
    static char host[4 * MiB + 1];
    CUdeviceptr pointer = 0;
    need("alloc", cuMemAlloc_v2(&pointer, 4 * MiB));
    RESULT("copy_past_the_end", cuMemcpyDtoH_v2(host, pointer, 4 * MiB + 1));
    aftermath("copy_past_the_end");
}

static void set_past_the_end(void) {
    CUdeviceptr pointer = 0;
    need("alloc", cuMemAlloc_v2(&pointer, 4 * MiB));
    RESULT("set_past_the_end", cuMemsetD8_v2(pointer, 0, 4 * MiB + 1));
    aftermath("set_past_the_end");
}

const struct risky risky_cases[] = {
    {"copy_reserved", copy_reserved},
    {"set_reserved", set_reserved},
    {"copy_without_access", copy_without_access},
    {"set_without_access", set_without_access},
    {"copy_read_only", copy_read_only},
    {"destroyed_context", destroyed_context},
    {"reset_primary", reset_primary},
    {"unmap_and_use", unmap_and_use},
    {"checkpoint_self", checkpoint_self},
    {"copy_to_freed", copy_to_freed},
    {"copy_from_freed", copy_from_freed},
    {"set_freed", set_freed},
    {"past_the_end", past_the_end},
    {"set_past_the_end", set_past_the_end},
};
const unsigned risky_count = sizeof risky_cases / sizeof *risky_cases;
