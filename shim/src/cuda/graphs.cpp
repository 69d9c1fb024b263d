// SPDX-License-Identifier: Apache-2.0
//
// Learns graphs when the program makes them executable: one that holds a coupled kernel is launched as one. A program that
// has looked no such kernel up pays nothing.
#include "core/array.h"
#include "core/coupled.h"
#include "cuda/driver.h"
#include "hooks/cuda_calls.h"

namespace gcr {
namespace cuda {
namespace {

constexpr CUgraphNodeType kKernelNode = 0;  // CU_GRAPH_NODE_TYPE_KERNEL
constexpr CUgraphNodeType kGraphNode = 4;  // CU_GRAPH_NODE_TYPE_GRAPH

void read_graph(CUgraph graph, coupled::Content* content);

const char* name_of(CUfunction function, CUkernel kernel) {
    const char* name = nullptr;
    if (function != nullptr && real::has_cuFuncGetName() && real::cuFuncGetName(&name, function) == CUDA_SUCCESS)
        return name;
    if (kernel != nullptr && real::has_cuKernelGetName() && real::cuKernelGetName(&name, kernel) == CUDA_SUCCESS)
        return name;
    return nullptr;
}

void read_kernel(CUgraphNode node, coupled::Content* content) {
    CUDA_KERNEL_NODE_PARAMS params{};
    if (real::cuGraphKernelNodeGetParams_v2(node, &params) != CUDA_SUCCESS) return;
    const void* handle = params.func != nullptr ? static_cast<const void*>(params.func) : params.kern;
    content->add(reinterpret_cast<uint64_t>(handle), name_of(params.func, params.kern));
}

void read_node(CUgraphNode node, coupled::Content* content) {
    CUgraphNodeType type = kKernelNode;
    if (real::cuGraphNodeGetType(node, &type) != CUDA_SUCCESS) return;
    if (type == kKernelNode) return read_kernel(node, content);
    CUgraph inner = nullptr;
    if (type != kGraphNode || real::cuGraphChildGraphNodeGetGraph(node, &inner) != CUDA_SUCCESS) return;
    read_graph(inner, content);
}

void read_graph(CUgraph graph, coupled::Content* content) {
    size_t count = 0;
    if (real::cuGraphGetNodes(graph, nullptr, &count) != CUDA_SUCCESS || count == 0) return;
    auto* nodes = static_cast<CUgraphNode*>(calloc(count, sizeof(CUgraphNode)));
    if (nodes == nullptr) return;
    if (real::cuGraphGetNodes(graph, nodes, &count) == CUDA_SUCCESS)
        for (size_t i = 0; i < count; i++) read_node(nodes[i], content);
    free(nodes);
}

CUresult learned(CUresult result, CUgraphExec executable, CUgraph graph) {
    if (result != CUDA_SUCCESS || !coupled::any() || !real::has_cuGraphKernelNodeGetParams_v2()) return result;
    coupled::Content content;
    read_graph(graph, &content);
    coupled::learn_graph(reinterpret_cast<uint64_t>(executable), content);
    return result;
}

}  // namespace

CUresult on_cuGraphInstantiate(CUgraphExec* phGraphExec, CUgraph hGraph, CUgraphNode* phErrorNode, char* logBuffer,
                               size_t bufferSize) {
    CUresult result = real::cuGraphInstantiate(phGraphExec, hGraph, phErrorNode, logBuffer, bufferSize);
    return result == CUDA_SUCCESS ? learned(result, *phGraphExec, hGraph) : result;
}

CUresult on_cuGraphInstantiate_v2(CUgraphExec* phGraphExec, CUgraph hGraph, CUgraphNode* phErrorNode, char* logBuffer,
                                  size_t bufferSize) {
    CUresult result = real::cuGraphInstantiate_v2(phGraphExec, hGraph, phErrorNode, logBuffer, bufferSize);
    return result == CUDA_SUCCESS ? learned(result, *phGraphExec, hGraph) : result;
}

CUresult on_cuGraphInstantiateWithFlags(CUgraphExec* phGraphExec, CUgraph hGraph, unsigned long long flags) {
    CUresult result = real::cuGraphInstantiateWithFlags(phGraphExec, hGraph, flags);
    return result == CUDA_SUCCESS ? learned(result, *phGraphExec, hGraph) : result;
}

CUresult on_cuGraphInstantiateWithParams(CUgraphExec* phGraphExec, CUgraph hGraph,
                                         CUDA_GRAPH_INSTANTIATE_PARAMS* instantiateParams) {
    CUresult result = real::cuGraphInstantiateWithParams(phGraphExec, hGraph, instantiateParams);
    return result == CUDA_SUCCESS ? learned(result, *phGraphExec, hGraph) : result;
}

CUresult on_cuGraphInstantiateWithParams_ptsz(CUgraphExec* phGraphExec, CUgraph hGraph,
                                              CUDA_GRAPH_INSTANTIATE_PARAMS* instantiateParams) {
    CUresult result = real::cuGraphInstantiateWithParams_ptsz(phGraphExec, hGraph, instantiateParams);
    return result == CUDA_SUCCESS ? learned(result, *phGraphExec, hGraph) : result;
}

CUresult on_cuGraphExecUpdate(CUgraphExec hGraphExec, CUgraph hGraph, CUgraphNode* hErrorNode_out,
                              CUgraphExecUpdateResult* updateResult_out) {
    CUresult result = real::cuGraphExecUpdate(hGraphExec, hGraph, hErrorNode_out, updateResult_out);
    return learned(result, hGraphExec, hGraph);
}

CUresult on_cuGraphExecUpdate_v2(CUgraphExec hGraphExec, CUgraph hGraph, CUgraphExecUpdateResultInfo* resultInfo) {
    return learned(real::cuGraphExecUpdate_v2(hGraphExec, hGraph, resultInfo), hGraphExec, hGraph);
}

// Forgotten first: another graph may have its handle as soon as the driver has it back.
CUresult on_cuGraphExecDestroy(CUgraphExec hGraphExec) {
    if (coupled::any()) coupled::learn_graph(reinterpret_cast<uint64_t>(hGraphExec), {});
    return real::cuGraphExecDestroy(hGraphExec);
}

}  // namespace cuda
}  // namespace gcr
