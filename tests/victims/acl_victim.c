// SPDX-License-Identifier: Apache-2.0
//
// A program linked to Ascend's runtime: plain and virtual memory, two streams, kernels, events.
//
//   acl_victim [STEPS] [--interactive]          GCR_SIM_KERNELS names the binary with the kernels fill, add and digest
//
// Prints one line that is the same for every run with the same arguments; exits 1 and says where on a wrong word.
// --interactive prints `ready`, then does a step and prints a line for every line read.
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "abi/acl.h"

enum { kWords = 64 * 1024, kChunk = 2 << 20, kChunks = 3, kStaging = 4096 };

static aclrtStream streams[2];
static aclrtEvent handed;
static aclrtFuncHandle fill, add, digest;
static void *plain, *mapped, *sum;
static aclrtDrvMemHandle chunks[kChunks];
static uint64_t expected = 0;  // what every word of `mapped` holds beyond the fill

static void must(aclError result, const char* call) {
    if (result == ACL_SUCCESS) return;
    fprintf(stderr, "acl_victim: %s returned %d\n", call, result);
    exit(1);
}
#define MUST(call) must(call, #call)

static aclrtFuncHandle function(aclrtBinHandle binary, const char* name) {
    aclrtFuncHandle found;
    must(aclrtBinaryGetFunction(binary, name, &found), name);
    return found;
}

static void load_kernels(void) {
    aclrtBinHandle binary;
    const char* path = getenv("GCR_SIM_KERNELS");
    must(path == NULL, "GCR_SIM_KERNELS");
    must(aclrtBinaryLoadFromFile(path, NULL, &binary), path);
    fill = function(binary, "fill");
    add = function(binary, "add");
    digest = function(binary, "digest");
}

static void map_chunks(void) {
    aclrtPhysicalMemProp wanted = {.memAttr = ACL_HBM_MEM_HUGE, .location = {0, ACL_MEM_LOCATION_TYPE_DEVICE}};
    MUST(aclrtReserveMemAddress(&mapped, (size_t)kChunks * kChunk, 0, NULL, 1));
    for (int i = 0; i < kChunks; i++) {
        MUST(aclrtMallocPhysical(&chunks[i], kChunk, &wanted, 0));
        MUST(aclrtMapMem((char*)mapped + (size_t)i * kChunk, kChunk, 0, chunks[i], 0));
    }
}

static void launch(aclrtFuncHandle kernel, aclrtStream stream, uint64_t a, uint64_t b, uint64_t c) {
    uint64_t arguments[] = {a, b, c};
    MUST(aclrtLaunchKernelWithHostArgs(kernel, 1, stream, NULL, arguments, sizeof arguments, NULL, 0));
}

static uint64_t digest_of(void* memory, uint64_t words) {
    uint64_t value;
    launch(digest, streams[1], (uint64_t)memory, words, (uint64_t)sum);
    MUST(aclrtSynchronizeStream(streams[1]));
    MUST(aclrtMemcpy(&value, sizeof value, sum, sizeof value, ACL_MEMCPY_DEVICE_TO_HOST));
    return value;
}

// One stream adds, the other copies a part of what it made: the event between them is what makes it right.
static void step(uint64_t number) {
    uint64_t words = (uint64_t)kChunks * kChunk / 8;
    launch(add, streams[0], (uint64_t)mapped, words, number);
    expected += number;
    MUST(aclrtRecordEvent(handed, streams[0]));
    MUST(aclrtStreamWaitEvent(streams[1], handed));
    MUST(aclrtMemcpyAsync(plain, kWords * 8, mapped, kWords * 8, ACL_MEMCPY_DEVICE_TO_DEVICE, streams[1]));
    MUST(aclrtRecordEvent(handed, streams[1]));
    MUST(aclrtStreamWaitEvent(streams[0], handed));
}

static void verify(void) {
    uint64_t first[kStaging / 8], copied[kStaging / 8];
    MUST(aclrtSynchronizeDevice());
    MUST(aclrtMemcpy(first, kStaging, mapped, kStaging, ACL_MEMCPY_DEVICE_TO_HOST));
    MUST(aclrtMemcpy(copied, kStaging, plain, kStaging, ACL_MEMCPY_DEVICE_TO_HOST));
    if (!memcmp(first, copied, kStaging)) return;
    fprintf(stderr, "acl_victim: the copy differs from what was copied\n");
    exit(1);
}

static void report(void) {
    verify();
    printf("verified digest %016" PRIx64 " %016" PRIx64 " added %" PRIu64 "\n",
           digest_of(mapped, (uint64_t)kChunks * kChunk / 8), digest_of(plain, kWords), expected);
    fflush(stdout);
}

static void start(void) {
    MUST(aclInit(NULL));
    MUST(aclrtSetDevice(0));
    MUST(aclrtCreateStream(&streams[0]));
    MUST(aclrtCreateStream(&streams[1]));
    MUST(aclrtCreateEvent(&handed));
    load_kernels();
    map_chunks();
    MUST(aclrtMalloc(&plain, kWords * 8, ACL_MEM_MALLOC_HUGE_FIRST));
    MUST(aclrtMalloc(&sum, 8, ACL_MEM_MALLOC_HUGE_FIRST));
    launch(fill, streams[0], (uint64_t)mapped, (uint64_t)kChunks * kChunk / 8, 42);
}

static void serve(uint64_t number) {
    char line[256];
    puts("ready");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        step(number++);
        report();
    }
}

static void stop(void) {
    for (int i = 0; i < kChunks; i++) {
        MUST(aclrtUnmapMem((char*)mapped + (size_t)i * kChunk));
        MUST(aclrtFreePhysical(chunks[i]));
    }
    MUST(aclrtReleaseMemAddress(mapped));
    MUST(aclrtFree(plain));
    MUST(aclrtFree(sum));
    MUST(aclrtDestroyEvent(handed));
    MUST(aclrtDestroyStream(streams[0]));
    MUST(aclrtDestroyStream(streams[1]));
    MUST(aclrtResetDevice(0));
    MUST(aclFinalize());
}

int main(int count, char** words) {
    uint64_t steps = count > 1 ? strtoull(words[1], NULL, 10) : 100, number = 1;
    int interactive = count > 1 && !strcmp(words[count - 1], "--interactive");
    start();
    for (; number <= steps; number++) step(number);
    if (interactive)
        serve(number);
    else
        report();
    stop();
    return 0;
}
