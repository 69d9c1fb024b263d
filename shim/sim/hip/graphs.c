// SPDX-License-Identifier: Apache-2.0
//
// Stream capture and the graphs that come of it.
#include "capture.h"
#include "front.h"

#define GRAPH(graph) \
    if (!sim_object_is_locked(graph, SIM_GRAPH)) return hipErrorInvalidValue
#define EXEC(exec) \
    if (!sim_object_is_locked(exec, SIM_GRAPH_EXEC)) return hipErrorInvalidValue

// ---- capture ------------------------------------------------------------------------------------------------------
hipError_t sim_hipStreamBeginCapture(hipStream_t handle, hipStreamCaptureMode mode) {
    if (mode > hipStreamCaptureModeRelaxed) return hipErrorInvalidValue;
    LOCK();
    STREAM(stream, handle);
    return front_result(sim_capture_begin_locked(stream, (enum sim_capture_mode)mode));
}

hipError_t sim_hipStreamEndCapture(hipStream_t handle, hipGraph_t* graph) {
    if (!graph) return hipErrorInvalidValue;
    LOCK();
    STREAM(stream, handle);
    return front_result(sim_capture_end_locked(stream, graph));
}

hipError_t sim_hipStreamIsCapturing(hipStream_t handle, hipStreamCaptureStatus* status) {
    if (!status) return hipErrorInvalidValue;
    LOCK();
    STREAM(stream, handle);
    sim_result result = sim_capture_check_implicit_locked(stream);
    if (!result) *status = sim_capture_status_locked(stream);
    return front_result(result);
}

hipError_t sim_hipStreamGetCaptureInfo_v2(hipStream_t handle, hipStreamCaptureStatus* status, unsigned long long* id,
                                          hipGraph_t* graph, const hipGraphNode_t** dependencies, size_t* count) {
    if (!status) return hipErrorInvalidValue;
    if (dependencies) *dependencies = NULL;
    if (count) *count = 0;
    LOCK();
    STREAM(stream, handle);
    *status = sim_capture_status_locked(stream);
    if (*status != hipStreamCaptureStatusActive) return hipSuccess;
    if (id) *id = stream->capture->id;
    if (graph) *graph = stream->capture->graph;
    return hipSuccess;
}

hipError_t sim_hipStreamGetCaptureInfo(hipStream_t stream, hipStreamCaptureStatus* status, unsigned long long* id) {
    return sim_hipStreamGetCaptureInfo_v2(stream, status, id, NULL, NULL, NULL);
}

hipError_t sim_hipThreadExchangeStreamCaptureMode(hipStreamCaptureMode* mode) {
    if (!mode || *mode > hipStreamCaptureModeRelaxed) return hipErrorInvalidValue;
    *mode = sim_capture_exchange_mode((enum sim_capture_mode) * mode);
    return hipSuccess;
}

// ---- graphs -------------------------------------------------------------------------------------------------------
hipError_t sim_hipGraphCreate(hipGraph_t* graph, unsigned int flags) {
    if (!graph || flags) return hipErrorInvalidValue;
    LOCK();
    *graph = sim_graph_create_locked();
    return *graph ? hipSuccess : hipErrorOutOfMemory;
}

hipError_t sim_hipGraphDestroy(hipGraph_t graph) {
    LOCK();
    GRAPH(graph);
    sim_object_remove_locked(graph);
    sim_graph_unreference_locked(graph);
    return hipSuccess;
}

hipError_t sim_hipGraphGetNodes(hipGraph_t graph, hipGraphNode_t* nodes, size_t* count) {
    if (!count) return hipErrorInvalidValue;
    LOCK();
    GRAPH(graph);
    size_t found = 0, room = nodes ? *count : 0;
    for (struct sim_operation* node = graph->first; node && found < room; node = node->next) nodes[found++] = node;
    *count = nodes ? found : graph->count;
    return hipSuccess;
}

hipError_t sim_hipGraphInstantiateWithFlags(hipGraphExec_t* exec, hipGraph_t graph, unsigned long long flags) {
    if (!exec) return hipErrorInvalidValue;
    LOCK();
    GRAPH(graph);
    return front_result(sim_graph_instantiate_locked(graph, exec));
}

hipError_t sim_hipGraphInstantiate(hipGraphExec_t* exec, hipGraph_t graph, hipGraphNode_t* bad, char* log,
                                   size_t size) {
    return sim_hipGraphInstantiateWithFlags(exec, graph, 0);
}

hipError_t sim_hipGraphExecDestroy(hipGraphExec_t exec) {
    LOCK();
    EXEC(exec);
    sim_graph_exec_destroy_locked(exec);
    return hipSuccess;
}

hipError_t sim_hipGraphUpload(hipGraphExec_t exec, hipStream_t stream) {
    LOCK();
    EXEC(exec);
    return hipSuccess;
}

hipError_t sim_hipGraphLaunch(hipGraphExec_t exec, hipStream_t handle) {
    LOCK();
    EXEC(exec);
    STREAM(stream, handle);
    return front_result(sim_graph_launch_locked(exec, stream));
}

// ---- per-thread default stream ------------------------------------------------------------------------------------
hipError_t sim_hipStreamBeginCapture_spt(hipStream_t stream, hipStreamCaptureMode mode) {
    return sim_hipStreamBeginCapture(front_per_thread(stream), mode);
}

hipError_t sim_hipStreamEndCapture_spt(hipStream_t stream, hipGraph_t* graph) {
    return sim_hipStreamEndCapture(front_per_thread(stream), graph);
}

hipError_t sim_hipStreamIsCapturing_spt(hipStream_t stream, hipStreamCaptureStatus* status) {
    return sim_hipStreamIsCapturing(front_per_thread(stream), status);
}

hipError_t sim_hipGraphLaunch_spt(hipGraphExec_t exec, hipStream_t stream) {
    return sim_hipGraphLaunch(exec, front_per_thread(stream));
}
