// SPDX-License-Identifier: Apache-2.0
//
// Captures of streams.
#include "conformance.h"

static void end(const char* name, CUstream stream) {
    CUgraph graph = (CUgraph)1;
    CUresult result = cuStreamEndCapture(stream, &graph);
    char label[64];
    snprintf(label, sizeof label, "%s_end", name);
    RESULT(label, result);
    snprintf(label, sizeof label, "%s_has_graph", name);
    VALUE(label, graph != NULL && graph != (CUgraph)1);
    if (!result && graph) need("destroy", cuGraphDestroy(graph));
}

static void capturing(const char* name, CUstream stream) {
    int status = -1;
    CUresult result = cuStreamIsCapturing(stream, &status);
    printf("capture.%s_status: %d %d\n", name, result, status);
}

static void allocating(const char* name, CUstream stream, int mode) {
    CUdeviceptr pointer = 0;
    char label[64];
    need("begin", cuStreamBeginCapture_v2(stream, mode));
    CUresult result = cuMemAlloc_v2(&pointer, 4096);
    snprintf(label, sizeof label, "%s_alloc", name);
    RESULT(label, result);
    capturing(name, stream);
    end(name, stream);
    if (!result) need("free", cuMemFree_v2(pointer));
}

static void waiting(CUstream stream) {
    need("begin", cuStreamBeginCapture_v2(stream, GLOBAL));
    RESULT("synchronize", cuStreamSynchronize(stream));
    end("synchronize", stream);
    need("begin", cuStreamBeginCapture_v2(stream, GLOBAL));
    RESULT("query", cuStreamQuery(stream));
    end("query", stream);
    need("begin", cuStreamBeginCapture_v2(stream, GLOBAL));
    RESULT("ctx_synchronize", cuCtxSynchronize());
    end("ctx_synchronize", stream);
    need("begin", cuStreamBeginCapture_v2(stream, RELAXED));
    RESULT("relaxed_ctx_synchronize", cuCtxSynchronize());
    end("relaxed_ctx_synchronize", stream);
}

static void disturbing(CUstream stream, CUdeviceptr device) {
    char byte;
    void* host = NULL;
    need("begin", cuStreamBeginCapture_v2(stream, GLOBAL));
    RESULT("copy_synchronous", cuMemcpyDtoH_v2(&byte, device, 1));
    end("copy_synchronous", stream);
    need("begin", cuStreamBeginCapture_v2(stream, GLOBAL));
    RESULT("set_synchronous", cuMemsetD8_v2(device, 1, 16));
    end("set_synchronous", stream);
    need("begin", cuStreamBeginCapture_v2(stream, GLOBAL));
    RESULT("legacy_memset", cuMemsetD8Async(device, 1, 16, NULL));
    end("legacy_memset", stream);
    need("begin", cuStreamBeginCapture_v2(stream, GLOBAL));
    RESULT("free", cuMemFree_v2(device));
    end("free", stream);
    need("begin", cuStreamBeginCapture_v2(stream, GLOBAL));
    CUresult result = cuMemHostAlloc(&host, 4096, 0);
    RESULT("host_alloc", result);
    end("host_alloc", stream);
    if (!result) need("free", cuMemFreeHost(host));
    size_t g = granularity();
    CUmemAllocationProp wanted = device_memory(1);
    CUhandle handle = 0;
    CUdeviceptr at = 0;
    need("begin", cuStreamBeginCapture_v2(stream, GLOBAL));
    result = cuMemCreate(&handle, g, &wanted, 0);
    RESULT("create", result);
    CUresult reserved = cuMemAddressReserve(&at, g, 0, 0, 0);
    RESULT("reserve", reserved);
    end("create_and_reserve", stream);
    if (!result) need("release", cuMemRelease(handle));
    if (!reserved) need("free", cuMemAddressFree(at, g));
}

static void joining(CUstream stream, CUstream other, CUdeviceptr device) {
    CUevent fork = NULL, join = NULL;
    need("event", cuEventCreate(&fork, 2));
    need("event", cuEventCreate(&join, 2));
    need("begin", cuStreamBeginCapture_v2(stream, GLOBAL));
    RESULT("fork_record", cuEventRecord(fork, stream));
    RESULT("fork_query", cuEventQuery(fork));
    end("fork_query", stream);
    need("begin", cuStreamBeginCapture_v2(stream, GLOBAL));
    need("record", cuEventRecord(fork, stream));
    RESULT("fork_synchronize", cuEventSynchronize(fork));
    end("fork_synchronize", stream);
    need("begin", cuStreamBeginCapture_v2(stream, GLOBAL));
    need("record", cuEventRecord(fork, stream));
    RESULT("fork_wait", cuStreamWaitEvent(other, fork, 0));
    capturing("forked", other);
    RESULT("fork_end_other", cuStreamEndCapture(other, &(CUgraph){NULL}));
    end("fork_end_other", stream);
    need("begin", cuStreamBeginCapture_v2(stream, GLOBAL));
    need("record", cuEventRecord(fork, stream));
    need("wait", cuStreamWaitEvent(other, fork, 0));
    end("unjoined_without_work", stream);
    need("begin", cuStreamBeginCapture_v2(stream, GLOBAL));
    need("record", cuEventRecord(fork, stream));
    need("wait", cuStreamWaitEvent(other, fork, 0));
    need("work", cuMemsetD8Async(device, 1, 16, other));
    end("unjoined", stream);
    capturing("forked_after", other);
    need("begin", cuStreamBeginCapture_v2(stream, GLOBAL));
    need("record", cuEventRecord(fork, stream));
    need("wait", cuStreamWaitEvent(other, fork, 0));
    need("work", cuMemsetD8Async(device, 1, 16, other));
    need("record", cuEventRecord(join, other));
    need("wait", cuStreamWaitEvent(stream, join, 0));
    end("joined", stream);
    need("destroy", cuEventDestroy_v2(fork));
    need("destroy", cuEventDestroy_v2(join));
}

// What a stream that captures nothing may be asked while another captures, by a thread in this mode.
enum {
    QUERY_EVENT,
    QUERY_STREAM,
    RECORD_EVENT,
    ASK_POOL,
    TRIM_POOL,
    ALLOCATE_ASYNC,
    FREE_ASYNC,
    FREE_POOLED,
    LEGACY_IS_CAPTURING,
    QUERY_LEGACY,
    ALLOCATE_LEGACY,
    FREE_LEGACY,
    BESIDE_COUNT,
};
static const char* const beside_names[] = {"query_event",         "query_stream", "record_event", "ask_pool",
                                           "trim_pool",           "alloc_async",  "free_async",   "free_pooled",
                                           "is_capturing_legacy", "query_legacy", "alloc_legacy", "free_legacy"};

static CUresult beside(int call, CUstream stream, CUevent event, void* pool, CUdeviceptr pooled, CUdeviceptr* made) {
    unsigned long long value = 0;
    int status = 0;
    switch (call) {
        case QUERY_EVENT:
            return cuEventQuery(event);
        case QUERY_STREAM:
            return cuStreamQuery(stream);
        case RECORD_EVENT:
            return cuEventRecord(event, stream);
        case ASK_POOL:
            return cuMemPoolGetAttribute(pool, 5, &value);
        case TRIM_POOL:
            return cuMemPoolTrimTo(pool, 0);
        case ALLOCATE_ASYNC:
            return cuMemAllocAsync(made, 1000, stream);
        case FREE_ASYNC:
            return cuMemFreeAsync(pooled, stream);
        case FREE_POOLED:
            return cuMemFree_v2(pooled);
        case LEGACY_IS_CAPTURING:
            return cuStreamIsCapturing(NULL, &status);
        case QUERY_LEGACY:
            return cuStreamQuery(NULL);
        case ALLOCATE_LEGACY:
            return cuMemAllocAsync(made, 1000, NULL);
        default:
            return cuMemFreeAsync(pooled, NULL);
    }
}

static void besides(const char* name, CUstream capturing_stream, CUstream stream, int mode) {
    CUevent event = NULL;
    void* pool = NULL;
    need("event", cuEventCreate(&event, 2));
    need("pool", cuDeviceGetDefaultMemPool(&pool, 0));
    for (int call = 0; call < BESIDE_COUNT; call++) {
        CUdeviceptr pooled = 0, made = 0;
        char label[64];
        need("alloc", cuMemAllocAsync(&pooled, 1000, stream));
        need("record", cuEventRecord(event, stream));
        need("synchronize", cuStreamSynchronize(stream));
        need("begin", cuStreamBeginCapture_v2(capturing_stream, GLOBAL));
        int swapped = mode;
        need("exchange", cuThreadExchangeStreamCaptureMode(&swapped));
        CUresult result = beside(call, stream, event, pool, pooled, &made);
        need("exchange", cuThreadExchangeStreamCaptureMode(&swapped));
        snprintf(label, sizeof label, "beside_%s_%s", name, beside_names[call]);
        RESULT(label, result);
        capturing(label, capturing_stream);
        end(label, capturing_stream);
        if (made && !result) need("free", cuMemFreeAsync(made, stream));
        int freed = call == FREE_ASYNC || call == FREE_POOLED || call == FREE_LEGACY;
        if (!freed || result) need("free", cuMemFreeAsync(pooled, stream));
        need("synchronize", cuStreamSynchronize(stream));
    }
    need("destroy", cuEventDestroy_v2(event));
}

void captures(void) {
    CUstream stream = NULL, other = NULL;
    CUdeviceptr device = 0;
    int mode = RELAXED;
    need("stream", cuStreamCreate(&stream, 0));
    need("stream", cuStreamCreate(&other, 1));
    need("alloc", cuMemAlloc_v2(&device, 4096));
    RESULT("begin_legacy", cuStreamBeginCapture_v2(NULL, GLOBAL));
    RESULT("begin_bad_mode", cuStreamBeginCapture_v2(stream, 7));
    RESULT("end_without_begin", cuStreamEndCapture(stream, &(CUgraph){NULL}));
    capturing("idle", stream);
    RESULT("begin", cuStreamBeginCapture_v2(stream, GLOBAL));
    RESULT("begin_twice", cuStreamBeginCapture_v2(stream, GLOBAL));
    capturing("active", stream);
    end("empty", stream);
    allocating("global", stream, GLOBAL);
    allocating("local", stream, THREAD_LOCAL);
    allocating("relaxed", stream, RELAXED);
    RESULT("exchange", cuThreadExchangeStreamCaptureMode(&mode));
    VALUE("exchange_old", mode);
    allocating("global_relaxed_thread", stream, GLOBAL);
    need("exchange", cuThreadExchangeStreamCaptureMode(&mode));
    VALUE("exchange_back", mode);
    waiting(stream);
    disturbing(stream, device);
    joining(stream, other, device);
    need("begin", cuStreamBeginCapture_v2(other, GLOBAL));
    RESULT("non_blocking_copy_synchronous", cuMemcpyDtoH_v2(&mode, device, 1));
    end("non_blocking_copy_synchronous", other);
    need("begin", cuStreamBeginCapture_v2(other, RELAXED));
    RESULT("non_blocking_relaxed_copy", cuMemcpyDtoH_v2(&mode, device, 1));
    end("non_blocking_relaxed_copy", other);
    need("begin", cuStreamBeginCapture_v2(other, GLOBAL));
    RESULT("non_blocking_legacy_memset", cuMemsetD8Async(device, 1, 16, NULL));
    end("non_blocking", other);
    RESULT("memset_after", cuMemsetD8_v2(device, 1, 16));
    besides("global", stream, other, GLOBAL);
    besides("relaxed", stream, other, RELAXED);
    need("free", cuMemFree_v2(device));
    need("destroy", cuStreamDestroy_v2(stream));
    need("destroy", cuStreamDestroy_v2(other));
}
