// SPDX-License-Identifier: Apache-2.0
//
// Copies, streams, events, graphs.
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
