// SPDX-License-Identifier: Apache-2.0
//
// Stream capture and the graphs that come of it.
#include "capture.h"
#include "front.h"

#define STREAM(name, handle)                                 \
    CUresult found_;                                         \
    struct sim_stream* name = front_stream(handle, &found_); \
    if (!name) return found_
#define GRAPH(graph) \
    if (!sim_object_is_locked(graph, SIM_GRAPH)) return CUDA_ERROR_INVALID_VALUE
#define EXEC(exec) \
    if (!sim_object_is_locked(exec, SIM_GRAPH_EXEC)) return CUDA_ERROR_INVALID_VALUE

// ---- capture ------------------------------------------------------------------------------------------------------
SIM_API CUresult cuStreamBeginCapture_v2(CUstream handle, int mode) {
    ENTER();
    if (mode < SIM_CAPTURE_GLOBAL || mode > SIM_CAPTURE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    STREAM(stream, handle);
    return front_result(sim_capture_begin_locked(stream, (enum sim_capture_mode)mode));
}

SIM_API CUresult cuStreamEndCapture(CUstream handle, CUgraph* graph) {
    ENTER();
    if (!graph) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    STREAM(stream, handle);
    return front_result(sim_capture_end_locked(stream, graph));
}

SIM_API CUresult cuStreamIsCapturing(CUstream handle, int* status) {
    ENTER();
    if (!status) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    STREAM(stream, handle);
    sim_result result = sim_capture_ask_implicit_locked(stream);
    if (!result) *status = sim_capture_status_locked(stream);
    return front_result(result);
}

static CUresult capture_info(CUstream handle, int* status, uint64_t* id, CUgraph* graph) {
    if (!status) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    STREAM(stream, handle);
    *status = sim_capture_status_locked(stream);
    if (*status != SIM_CAPTURE_ACTIVE) return CUDA_SUCCESS;
    if (id) *id = stream->capture->id;
    if (graph) *graph = stream->capture->graph;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuStreamGetCaptureInfo(CUstream stream, int* status, uint64_t* id) {
    ENTER();
    return capture_info(stream, status, id, NULL);
}

SIM_API CUresult cuStreamGetCaptureInfo_v2(CUstream stream, int* status, uint64_t* id, CUgraph* graph,
                                           const CUgraphNode** dependencies, size_t* count) {
    ENTER();
    if (dependencies) *dependencies = NULL;
    if (count) *count = 0;
    return capture_info(stream, status, id, graph);
}

SIM_API CUresult cuStreamGetCaptureInfo_v3(CUstream stream, int* status, uint64_t* id, CUgraph* graph,
                                           const CUgraphNode** dependencies, const void** edges, size_t* count) {
    ENTER();
    if (dependencies) *dependencies = NULL;
    if (edges) *edges = NULL;
    if (count) *count = 0;
    return capture_info(stream, status, id, graph);
}

SIM_API CUresult cuThreadExchangeStreamCaptureMode(int* mode) {
    ENTER();
    if (!mode || *mode < SIM_CAPTURE_GLOBAL || *mode > SIM_CAPTURE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
    *mode = (int)sim_capture_exchange_mode((enum sim_capture_mode) * mode);
    return CUDA_SUCCESS;
}

// ---- graphs -------------------------------------------------------------------------------------------------------
SIM_API CUresult cuGraphCreate(CUgraph* graph, unsigned flags) {
    ENTER();
    if (!graph || flags) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    *graph = sim_graph_create_locked();
    return *graph ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

SIM_API CUresult cuGraphDestroy(CUgraph graph) {
    ENTER();
    LOCK();
    GRAPH(graph);
    sim_object_remove_locked(graph);
    sim_graph_unreference_locked(graph);
    return CUDA_SUCCESS;
}

SIM_API CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode* nodes, size_t* count) {
    ENTER();
    if (!count) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    GRAPH(graph);
    size_t found = 0, room = nodes ? *count : 0;
    for (struct sim_operation* node = graph->first; node && found < room; node = node->next) nodes[found++] = node;
    *count = nodes ? found : graph->count;
    return CUDA_SUCCESS;
}

enum { KERNEL_NODE = 0, HOST_NODE = 3 };

// Nodes are not told apart but for kernels: what is none says that it is a host function.
SIM_API CUresult cuGraphNodeGetType(CUgraphNode node, int* type) {
    ENTER();
    if (!node || !type) return CUDA_ERROR_INVALID_VALUE;
    *type = ((struct sim_operation*)node)->function ? KERNEL_NODE : HOST_NODE;
    return CUDA_SUCCESS;
}

struct kernel_node_params {
    const struct sim_function* function;
    unsigned grid[3], block[3], shared;
    void **params, **extra;
    const struct sim_function* kernel;
    CUcontext context;
};

// But for the kernel everything is left out.
SIM_API CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode node, struct kernel_node_params* params) {
    ENTER();
    if (!node || !params || !((struct sim_operation*)node)->function) return CUDA_ERROR_INVALID_VALUE;
    *params = (struct kernel_node_params){.function = ((struct sim_operation*)node)->function};
    return CUDA_SUCCESS;
}

SIM_API CUresult cuGraphInstantiateWithFlags(CUgraphExec* exec, CUgraph graph, unsigned long long flags) {
    ENTER();
    if (!exec) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    GRAPH(graph);
    return front_result(sim_graph_instantiate_locked(graph, exec));
}

SIM_API CUresult cuGraphInstantiate_v2(CUgraphExec* exec, CUgraph graph, CUgraphNode* bad, char* log, size_t size) {
    return cuGraphInstantiateWithFlags(exec, graph, 0);
}

struct instantiate_params {
    uint64_t flags;
    CUstream upload;
    CUgraphNode bad;
    int result;
};

SIM_API CUresult cuGraphInstantiateWithParams(CUgraphExec* exec, CUgraph graph, struct instantiate_params* params) {
    if (!params) return CUDA_ERROR_INVALID_VALUE;
    params->bad = NULL;
    params->result = 0;
    return cuGraphInstantiateWithFlags(exec, graph, params->flags);
}

SIM_API CUresult cuGraphExecDestroy(CUgraphExec exec) {
    ENTER();
    LOCK();
    EXEC(exec);
    sim_graph_exec_destroy_locked(exec);
    return CUDA_SUCCESS;
}

SIM_API CUresult cuGraphUpload(CUgraphExec exec, CUstream stream) {
    ENTER();
    LOCK();
    EXEC(exec);
    return CUDA_SUCCESS;
}

SIM_API CUresult cuGraphLaunch(CUgraphExec exec, CUstream handle) {
    ENTER();
    LOCK();
    EXEC(exec);
    STREAM(stream, handle);
    return front_result(sim_graph_launch_locked(exec, stream));
}

// ---- per-thread default stream ------------------------------------------------------------------------------------
SIM_API CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, int mode) {
    return cuStreamBeginCapture_v2(per_thread(stream), mode);
}

SIM_API CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph* graph) {
    return cuStreamEndCapture(per_thread(stream), graph);
}

SIM_API CUresult cuStreamIsCapturing_ptsz(CUstream stream, int* status) {
    return cuStreamIsCapturing(per_thread(stream), status);
}

SIM_API CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec* exec, CUgraph graph,
                                                   struct instantiate_params* params) {
    return cuGraphInstantiateWithParams(exec, graph, params);
}

SIM_API CUresult cuGraphUpload_ptsz(CUgraphExec exec, CUstream stream) {
    return cuGraphUpload(exec, per_thread(stream));
}

SIM_API CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream) {
    return cuGraphLaunch(exec, per_thread(stream));
}
