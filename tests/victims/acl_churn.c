// SPDX-License-Identifier: Apache-2.0
//
// Threads that allocate, map, copy and free, while another takes one snapshot of the process after the other.
//
//   acl_churn [CYCLES]           every second cycle restores, the others go back from the backup; prints `churned N`
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "abi/acl.h"

enum { kThreads = 3, kChunk = 2 << 20, kSmall = 8192 };

static int enough;
static aclrtContext context;

static void must(aclError result, const char* call) {
    if (result == ACL_SUCCESS) return;
    fprintf(stderr, "acl_churn: %s returned %d\n", call, result);
    exit(1);
}
#define MUST(call) must(call, #call)

static void use_plain_memory(aclrtStream stream) {
    static const char data[kSmall];
    void* plain;
    MUST(aclrtMalloc(&plain, kSmall, ACL_MEM_MALLOC_HUGE_FIRST));
    MUST(aclrtMemcpyAsync(plain, kSmall, data, kSmall, ACL_MEMCPY_HOST_TO_DEVICE, stream));
    MUST(aclrtSynchronizeStream(stream));
    MUST(aclrtFree(plain));
}

static void use_mapped_memory(aclrtStream stream) {
    aclrtPhysicalMemProp wanted = {.memAttr = ACL_HBM_MEM_HUGE, .location = {0, ACL_MEM_LOCATION_TYPE_DEVICE}};
    aclrtDrvMemHandle handle;
    void* where;
    MUST(aclrtReserveMemAddress(&where, kChunk, 0, NULL, 0));
    MUST(aclrtMallocPhysical(&handle, kChunk, &wanted, 0));
    MUST(aclrtMapMem(where, kChunk, 0, handle, 0));
    MUST(aclrtMemsetAsync(where, kChunk, 3, kSmall, stream));
    MUST(aclrtSynchronizeStream(stream));
    MUST(aclrtUnmapMem(where));
    MUST(aclrtFreePhysical(handle));
    MUST(aclrtReleaseMemAddress(where));
}

static void* work(void* nothing) {
    aclrtStream stream;
    MUST(aclrtSetCurrentContext(context));
    MUST(aclrtCreateStream(&stream));
    while (!__atomic_load_n(&enough, __ATOMIC_RELAXED)) {
        use_plain_memory(stream);
        use_mapped_memory(stream);
    }
    MUST(aclrtDestroyStream(stream));
    return nothing;
}

static void cycle(int restores) {
    MUST(aclrtSnapShotProcessLock(getpid(), NULL));
    MUST(aclrtSnapShotProcessBackup(getpid(), NULL));
    if (restores) MUST(aclrtSnapShotProcessRestore(getpid(), NULL));
    MUST(aclrtSnapShotProcessUnlock(getpid(), NULL));
    usleep(2000);
}

int main(int count, char** words) {
    int cycles = count > 1 ? atoi(words[1]) : 50;
    pthread_t threads[kThreads];
    MUST(aclInit(NULL));
    MUST(aclrtSetDevice(0));
    MUST(aclrtGetCurrentContext(&context));
    for (int i = 0; i < kThreads; i++) pthread_create(&threads[i], NULL, work, NULL);
    for (int i = 0; i < cycles; i++) cycle(i % 2);
    __atomic_store_n(&enough, 1, __ATOMIC_RELAXED);
    for (int i = 0; i < kThreads; i++) pthread_join(threads[i], NULL);
    size_t free_bytes, total;
    MUST(aclrtGetMemInfo(ACL_HBM_MEM, &free_bytes, &total));
    printf("churned %d, %zu bytes in use\n", cycles, total - free_bytes);
    return 0;
}
