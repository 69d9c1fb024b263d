// SPDX-License-Identifier: Apache-2.0
//
// Copies, streams, events, captures, graphs.
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "conformance.h"

void copies(void) {
    enum { BYTES = 8192 };
    static unsigned char host[BYTES], back[BYTES];
    CUdeviceptr device = 0, other = 0;
    need("alloc", cuMemAlloc_v2(&device, BYTES));
    need("alloc", cuMemAlloc_v2(&other, BYTES));
    for (int i = 0; i < BYTES; i++) host[i] = (unsigned char)(i * 7 + i / 256);
    RESULT("to_device", cuMemcpyHtoD_v2(device, host, BYTES));
    RESULT("to_other", cuMemcpyDtoD_v2(other, device, BYTES));
    RESULT("to_host", cuMemcpyDtoH_v2(back, other, BYTES));
    VALUE("equal", memcmp(host, back, BYTES) == 0);
    RESULT("unified", cuMemcpy((CUdeviceptr)(uintptr_t)back, device, 100));
    RESULT("unified_host_to_host", cuMemcpy((CUdeviceptr)(uintptr_t)back, (CUdeviceptr)(uintptr_t)host, 100));
    RESULT("size_zero", cuMemcpyHtoD_v2(device, host, 0));
    RESULT("size_zero_null", cuMemcpyHtoD_v2(0, NULL, 0));
    RESULT("null_device", cuMemcpyHtoD_v2(0, host, 100));
    RESULT("device_is_host", cuMemcpyDtoH_v2(back, (CUdeviceptr)(uintptr_t)host, 100));
    RESULT("target_is_host", cuMemcpyHtoD_v2((CUdeviceptr)(uintptr_t)back, host, 100));
    RESULT("interior", cuMemcpyDtoH_v2(back, device + 1001, 77));
    VALUE("interior_equal", memcmp(host + 1001, back, 77) == 0);
    RESULT("set8", cuMemsetD8_v2(device, 9, BYTES));
    RESULT("set16", cuMemsetD16_v2(device, 0x1234, 16));
    RESULT("set32", cuMemsetD32_v2(device, 0x12345678, 16));
    RESULT("set16_unaligned", cuMemsetD16_v2(device + 1, 1, 16));
    RESULT("set32_unaligned", cuMemsetD32_v2(device + 2, 1, 16));
    RESULT("set_none", cuMemsetD8_v2(device, 1, 0));
    RESULT("set_host", cuMemsetD8_v2((CUdeviceptr)(uintptr_t)back, 1, 16));
    RESULT("set_2d", cuMemsetD2D8_v2(device, 256, 3, 100, 10));
    RESULT("set_2d_pitch_short", cuMemsetD2D8_v2(device, 50, 3, 100, 10));
    RESULT("after_sets", cuMemcpyDtoH_v2(back, device, BYTES));
    VALUE("after_sets_sum", back[0] + back[99] + back[100] + back[256] + back[BYTES - 1]);
    need("free", cuMemFree_v2(device));
    need("free", cuMemFree_v2(other));
}

static atomic_int calls;

static void host_function(void* argument) {
    atomic_fetch_add(&calls, (int)(intptr_t)argument);
}

static void callback(CUstream stream, CUresult status, void* argument) {
    (void)stream;
    atomic_fetch_add(&calls, status ? 1000 : (int)(intptr_t)argument);
}

static void stream_properties(CUstream blocking, CUstream other) {
    unsigned flags = 99;
    int priority = 99;
    CUcontext context = NULL, current;
    need("context", cuCtxGetCurrent(&current));
    RESULT("flags", cuStreamGetFlags(other, &flags));
    VALUE("flags_value", flags);
    RESULT("flags_of_0", cuStreamGetFlags(NULL, &flags));
    VALUE("flags_of_0_value", flags);
    RESULT("flags_of_legacy", cuStreamGetFlags((CUstream)1, &flags));
    RESULT("flags_of_per_thread", cuStreamGetFlags((CUstream)2, &flags));
    RESULT("priority", cuStreamGetPriority(blocking, &priority));
    VALUE("priority_value", priority);
    RESULT("context", cuStreamGetCtx(blocking, &context));
    VALUE("context_is_current", context == current);
    RESULT("context_of_0", cuStreamGetCtx(NULL, &context));
    CUstream urgent = NULL;
    RESULT("create_priority", cuStreamCreateWithPriority(&urgent, 1, -100));
    need("priority", cuStreamGetPriority(urgent, &priority));
    VALUE("priority_clamped", priority);
    RESULT("destroy_priority", cuStreamDestroy_v2(urgent));
}

static void stream_values(CUstream stream) {
    CUdeviceptr word = 0;
    unsigned seen = 0;
    need("alloc", cuMemAlloc_v2(&word, 4096));
    need("memset", cuMemsetD8_v2(word, 0, 4096));
    RESULT("write_value", cuStreamWriteValue32_v2(stream, word, 7, 0));
    RESULT("wait_value", cuStreamWaitValue32_v2(stream, word, 7, 1));
    RESULT("wait_value_geq", cuStreamWaitValue32_v2(stream, word, 5, 0));
    RESULT("wait_value_unaligned", cuStreamWaitValue32_v2(stream, word + 2, 7, 1));
    RESULT("write_value_unaligned", cuStreamWriteValue32_v2(stream, word + 1, 7, 0));
    RESULT("values_done", cuStreamSynchronize(stream));
    need("read", cuMemcpyDtoH_v2(&seen, word, 4));
    VALUE("value_seen", seen);
    need("free", cuMemFree_v2(word));
}

void streams(void) {
    CUstream blocking = NULL, other = NULL;
    RESULT("create_bad_flags", cuStreamCreate(&other, 2));
    RESULT("create_null", cuStreamCreate(NULL, 0));
    RESULT("create", cuStreamCreate(&blocking, 0));
    RESULT("create_non_blocking", cuStreamCreate(&other, 1));
    RESULT("query", cuStreamQuery(blocking));
    RESULT("query_0", cuStreamQuery(NULL));
    RESULT("synchronize_per_thread", cuStreamSynchronize((CUstream)2));
    stream_properties(blocking, other);
    RESULT("host_function", cuLaunchHostFunc(blocking, host_function, (void*)1));
    RESULT("host_function_null", cuLaunchHostFunc(blocking, NULL, NULL));
    RESULT("callback", cuStreamAddCallback(blocking, callback, (void*)10, 0));
    RESULT("callback_flags", cuStreamAddCallback(blocking, callback, (void*)10, 1));
    RESULT("synchronize", cuStreamSynchronize(blocking));
    VALUE("calls", atomic_load(&calls));
    stream_values(other);
    RESULT("destroy", cuStreamDestroy_v2(blocking));
    RESULT("destroy_non_blocking", cuStreamDestroy_v2(other));
    RESULT("destroy_null", cuStreamDestroy_v2(NULL));
    RESULT("destroy_legacy", cuStreamDestroy_v2((CUstream)1));
}

void events(void) {
    CUevent first = NULL, second = NULL, untimed = NULL;
    float ms = -1;
    RESULT("create_null", cuEventCreate(NULL, 0));
    RESULT("create_bad_flags", cuEventCreate(&first, 0x100));
    RESULT("create_interprocess_timed", cuEventCreate(&first, 4));
    RESULT("create", cuEventCreate(&first, 0));
    need("create", cuEventCreate(&second, 0));
    RESULT("create_untimed", cuEventCreate(&untimed, 2));
    RESULT("query_unrecorded", cuEventQuery(first));
    RESULT("synchronize_unrecorded", cuEventSynchronize(first));
    RESULT("wait_unrecorded", cuStreamWaitEvent(NULL, first, 0));
    RESULT("elapsed_unrecorded", cuEventElapsedTime(&ms, first, second));
    RESULT("record", cuEventRecord(first, NULL));
    RESULT("record_per_thread", cuEventRecord(second, (CUstream)2));
    RESULT("synchronize", cuEventSynchronize(second));
    need("synchronize", cuEventSynchronize(first));
    RESULT("query", cuEventQuery(first));
    RESULT("elapsed", cuEventElapsedTime(&ms, first, second));
    RESULT("elapsed_null", cuEventElapsedTime(NULL, first, second));
    RESULT("record_untimed", cuEventRecord(untimed, NULL));
    need("synchronize", cuCtxSynchronize());
    RESULT("elapsed_untimed", cuEventElapsedTime(&ms, untimed, second));
    RESULT("wait_bad_flags", cuStreamWaitEvent(NULL, first, 64));
    RESULT("wait_null", cuStreamWaitEvent(NULL, NULL, 0));
    RESULT("destroy", cuEventDestroy_v2(first));
    RESULT("destroy_null", cuEventDestroy_v2(NULL));
    need("destroy", cuEventDestroy_v2(second));
    need("destroy", cuEventDestroy_v2(untimed));
}

// ---- captures -----------------------------------------------------------------------------------------------------
enum { GLOBAL = 0, THREAD_LOCAL = 1, RELAXED = 2 };

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

void graphs(void) {
    CUstream stream = NULL;
    CUgraph graph = NULL;
    CUgraphExec exec = NULL;
    CUdeviceptr device = 0;
    unsigned char byte = 0;
    size_t nodes = 0;
    need("stream", cuStreamCreate(&stream, 1));
    need("alloc", cuMemAlloc_v2(&device, 4096));
    need("memset", cuMemsetD8_v2(device, 0, 4096));
    need("begin", cuStreamBeginCapture_v2(stream, THREAD_LOCAL));
    RESULT("captured_memset", cuMemsetD8Async(device, 33, 4096, stream));
    RESULT("captured_host_function", cuLaunchHostFunc(stream, host_function, (void*)100));
    need("end", cuStreamEndCapture(stream, &graph));
    RESULT("nodes", cuGraphGetNodes(graph, NULL, &nodes));
    VALUE("node_count", nodes);
    need("read", cuMemcpyDtoH_v2(&byte, device, 1));
    VALUE("before_launch", byte);
    RESULT("instantiate", cuGraphInstantiateWithFlags(&exec, graph, 0));
    RESULT("destroy_graph", cuGraphDestroy(graph));
    atomic_store(&calls, 0);
    RESULT("launch", cuGraphLaunch(exec, stream));
    RESULT("launch_again", cuGraphLaunch(exec, stream));
    RESULT("synchronize", cuStreamSynchronize(stream));
    need("read", cuMemcpyDtoH_v2(&byte, device, 1));
    VALUE("after_launch", byte);
    VALUE("host_calls", atomic_load(&calls));
    RESULT("destroy_exec", cuGraphExecDestroy(exec));
    RESULT("instantiate_null", cuGraphInstantiateWithFlags(&exec, NULL, 0));
    RESULT("load_garbage", cuModuleLoadData(&(void*){NULL}, "this is no device code, and no program at all......"));
    RESULT("load_missing", cuModuleLoad(&(void*){NULL}, "/nonexistent/module"));
    need("free", cuMemFree_v2(device));
    need("destroy", cuStreamDestroy_v2(stream));
}
