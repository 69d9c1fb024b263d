// SPDX-License-Identifier: Apache-2.0
//
// Primary contexts, contexts of the program, what dies with them; the checkpoint calls that touch no process.
#include <unistd.h>

#include "conformance.h"

static void state(const char* name) {
    unsigned flags = 99;
    int active = -1;
    need("state", cuDevicePrimaryCtxGetState(0, &flags, &active));
    printf("primary.%s: flags %u active %d\n", name, flags, active);
}

void primary_contexts(void) {
    CUcontext first = NULL, second = NULL;
    state("at_first");
    RESULT("release_unretained", cuDevicePrimaryCtxRelease_v2(0));
    RESULT("reset_inactive", cuDevicePrimaryCtxReset_v2(0));
    RESULT("retain", cuDevicePrimaryCtxRetain(&first, 0));
    state("retained");
    RESULT("retain_again", cuDevicePrimaryCtxRetain(&second, 0));
    VALUE("same", first == second);
    RESULT("release", cuDevicePrimaryCtxRelease_v2(0));
    state("released_once");
    RESULT("set_flags_active", cuDevicePrimaryCtxSetFlags_v2(0, 4));
    state("flags_set");
    RESULT("set_flags_back", cuDevicePrimaryCtxSetFlags_v2(0, 0));
    RESULT("set_flags_bad", cuDevicePrimaryCtxSetFlags_v2(0, 0x10000));
    RESULT("destroy_primary", cuCtxDestroy_v2(first));
    RESULT("release_last", cuDevicePrimaryCtxRelease_v2(0));
    state("released");
    RESULT("release_too_often", cuDevicePrimaryCtxRelease_v2(0));
    RESULT("retain_null", cuDevicePrimaryCtxRetain(NULL, 0));
    RESULT("retain_bad_device", cuDevicePrimaryCtxRetain(&first, 4096));
    unsigned flags;
    RESULT("state_null", cuDevicePrimaryCtxGetState(0, &flags, NULL));
}

static void current_and_stack(CUcontext primary, CUcontext made) {
    CUcontext seen = NULL;
    need("current", cuCtxGetCurrent(&seen));
    VALUE("created_is_current", seen == made);
    RESULT("push_primary", cuCtxPushCurrent_v2(primary));
    RESULT("pop", cuCtxPopCurrent_v2(&seen));
    VALUE("popped_primary", seen == primary);
    RESULT("push_null", cuCtxPushCurrent_v2(NULL));
    unsigned version = 0, flags = 99;
    unsigned long long one = 0, two = 0;
    RESULT("api_version", cuCtxGetApiVersion(made, &version));
    RESULT("flags", cuCtxGetFlags(&flags));
    VALUE("flags_value", flags);
    RESULT("id", cuCtxGetId(made, &one));
    need("id", cuCtxGetId(primary, &two));
    VALUE("ids_differ", one != two);
    int least = 1, greatest = 1;
    RESULT("priorities", cuCtxGetStreamPriorityRange(&least, &greatest));
    VALUE("least", least);
    VALUE("greatest", greatest);
    size_t limit;
    RESULT("limit", cuCtxGetLimit(&limit, 0));
    RESULT("limit_unknown", cuCtxGetLimit(&limit, 4096));
}

static void across_contexts(CUcontext primary, CUcontext made) {
    CUdeviceptr here = 0, base = 0;
    size_t size = 0;
    CUcontext owner = NULL;
    CUstream stream;
    CUevent event;
    need("alloc", cuMemAlloc_v2(&here, 4096));
    need("stream", cuStreamCreate(&stream, 0));
    need("event", cuEventCreate(&event, 0));
    need("switch", cuCtxSetCurrent(primary));
    RESULT("range_from_other", cuMemGetAddressRange_v2(&base, &size, here));
    RESULT("owner_from_other", cuPointerGetAttribute(&owner, 1, here));
    VALUE("owner_is_made", owner == made);
    RESULT("memset_from_other", cuMemsetD8_v2(here, 1, 4096));
    RESULT("record_other_event_on_own_stream", cuEventRecord(event, NULL));
    RESULT("record_other_event_on_other_stream", cuEventRecord(event, stream));
    RESULT("own_stream_waits_other_event", cuStreamWaitEvent(NULL, event, 0));
    RESULT("synchronize_other_stream", cuStreamSynchronize(stream));
    RESULT("memset_on_other_stream", cuMemsetD8Async(here, 2, 4096, stream));
    CUcontext popped, none = (CUcontext)1;
    need("pop", cuCtxPopCurrent_v2(&popped));
    need("pop", cuCtxPopCurrent_v2(&popped));
    need("current", cuCtxGetCurrent(&none));
    VALUE("none_is_current", none == NULL);
    RESULT("range_from_none", cuMemGetAddressRange_v2(&base, &size, here));
    RESULT("owner_from_none", cuPointerGetAttribute(&owner, 1, here));
    RESULT("info_from_none", cuMemGetInfo_v2(&size, &size));
    RESULT("memset_from_none", cuMemsetD8_v2(here, 1, 4096));
    RESULT("memset_from_none_on_stream", cuMemsetD8Async(here, 1, 4096, stream));
    RESULT("synchronize_from_none", cuStreamSynchronize(stream));
    RESULT("free_from_none", cuMemFree_v2(here));
    need("push", cuCtxPushCurrent_v2(primary));
    need("alloc", cuMemAlloc_v2(&base, 4096));
    need("push", cuCtxPushCurrent_v2(made));
    RESULT("free_from_other", cuMemFree_v2(base));
}

void contexts(void) {
    CUcontext primary = NULL, made = NULL, seen = (CUcontext)1;
    need("current", cuCtxGetCurrent(&primary));
    RESULT("create_bad_flags", cuCtxCreate_v2(&made, 0x10000, 0));
    RESULT("create_bad_device", cuCtxCreate_v2(&made, 0, 4096));
    RESULT("create_null", cuCtxCreate_v2(NULL, 0, 0));
    RESULT("create", cuCtxCreate_v2(&made, 0, 0));
    current_and_stack(primary, made);
    across_contexts(primary, made);
    RESULT("peer_self", cuCtxEnablePeerAccess(made, 0));
    RESULT("peer_same_device", cuCtxEnablePeerAccess(primary, 0));
    RESULT("peer_null", cuCtxEnablePeerAccess(NULL, 0));
    RESULT("peer_bad_flags", cuCtxEnablePeerAccess(primary, 1));
    RESULT("peer_disable", cuCtxDisablePeerAccess(primary));

    CUdeviceptr lost = 0, base = 0;
    size_t size;
    int type = 0;
    need("alloc", cuMemAlloc_v2(&lost, 4 * MiB));
    RESULT("destroy", cuCtxDestroy_v2(made));
    RESULT("current_after_destroy", cuCtxGetCurrent(&seen));
    VALUE("current_is_primary", seen == primary);
    VALUE("current_is_null", seen == NULL);
    RESULT("set_primary", cuCtxSetCurrent(primary));
    RESULT("range_of_lost", cuMemGetAddressRange_v2(&base, &size, lost));
    RESULT("attribute_of_lost", cuPointerGetAttribute(&type, 2, lost));
    RESULT("free_of_lost", cuMemFree_v2(lost));
    RESULT("destroy_null", cuCtxDestroy_v2(NULL));
}

// States that refuse at once, and a process that does not exist.
void checkpoints(void) {
    int value = -1;
    RESULT("state_self", cuCheckpointProcessGetState(getpid(), &value));
    VALUE("state_self_value", value);
    RESULT("state_null", cuCheckpointProcessGetState(getpid(), NULL));
    RESULT("state_without_driver", cuCheckpointProcessGetState(getppid(), &value));
    RESULT("lock_without_driver", cuCheckpointProcessLock(getppid(), NULL));
    RESULT("state_nobody", cuCheckpointProcessGetState(4194303, &value));
    RESULT("state_negative", cuCheckpointProcessGetState(-1, &value));
    RESULT("lock_nobody", cuCheckpointProcessLock(4194303, NULL));
    RESULT("checkpoint_running", cuCheckpointProcessCheckpoint(getpid(), NULL));
    RESULT("restore_running", cuCheckpointProcessRestore(getpid(), NULL));
    RESULT("unlock_running", cuCheckpointProcessUnlock(getpid(), NULL));
    RESULT("still_works", cuCtxSynchronize());
}
