// SPDX-License-Identifier: Apache-2.0
#include <time.h>

#include <atomic>

#include "puppet.h"

namespace {

std::atomic<int> door{0};  // what host callbacks wait for

std::string init(const Words&) {
    return say(cuInit(0));
}

std::string primary(const Words& words) {  // primary NAME DEVICE
    CUcontext context = nullptr;
    CUresult result = cuDevicePrimaryCtxRetain(&context, static_cast<int>(number(words[2])));
    if (result == CUDA_SUCCESS) result = cuCtxSetCurrent(puppet.contexts[words[1]] = context);
    return say(result);
}

// … 1: by its first ABI
bool first_abi(const Words& words) {
    return words.size() > 2 && words[2] == "1";
}

std::string primary_release(const Words& words) {  // primaryrelease DEVICE [1]
    int device = static_cast<int>(number(words[1]));
    return say(first_abi(words) ? cuDevicePrimaryCtxRelease(device) : cuDevicePrimaryCtxRelease_v2(device));
}

std::string primary_reset(const Words& words) {  // primaryreset DEVICE [1]
    int device = static_cast<int>(number(words[1]));
    return say(first_abi(words) ? cuDevicePrimaryCtxReset(device) : cuDevicePrimaryCtxReset_v2(device));
}

std::string context(const Words& words) {  // context NAME DEVICE [1]
    CUcontext made = nullptr;
    int device = static_cast<int>(number(words[2]));
    CUresult result = words.size() > 3 ? cuCtxCreate(&made, 0, device) : cuCtxCreate_v2(&made, 0, device);
    if (result == CUDA_SUCCESS) puppet.contexts[words[1]] = made;
    return say(result);
}

std::string use(const Words& words) {
    return say(cuCtxSetCurrent(puppet.contexts[words[1]]));
}
std::string destroy(const Words& words) {  // destroy NAME [1]
    CUcontext context = puppet.contexts[words[1]];
    return say(first_abi(words) ? cuCtxDestroy(context) : cuCtxDestroy_v2(context));
}
std::string attach(const Words&) {
    CUcontext current = nullptr;
    return say(cuCtxAttach(&current, 0));
}
std::string detach(const Words& words) {
    return say(cuCtxDetach(puppet.contexts[words[1]]));
}
std::string peer(const Words& words) {
    return say(cuCtxEnablePeerAccess(puppet.contexts[words[1]], 0));
}
std::string unpeer(const Words& words) {
    return say(cuCtxDisablePeerAccess(puppet.contexts[words[1]]));
}

std::string load_kernels(const Words& words) {  // kernels PATH
    CUmodule module = nullptr;
    CUresult result = cuModuleLoad(&module, words[1].c_str());
    for (const char* name : {"fill", "digest", "add", "spin", "spin_until", "cross_device_reduce"})
        if (result == CUDA_SUCCESS) result = cuModuleGetFunction(&puppet.kernels[name], module, name);
    return say(result);
}

std::string stream(const Words& words) {  // stream NAME
    CUstream made = nullptr;
    CUresult result = cuStreamCreate(&made, CU_STREAM_NON_BLOCKING);
    std::lock_guard<std::mutex> guard(puppet.lock);
    if (result == CUDA_SUCCESS) puppet.streams[words[1]] = made;
    return say(result);
}

std::string destroy_stream(const Words& words) {  // destroystream NAME [1]
    CUstream stream = stream_of(words[1]);
    return say(first_abi(words) ? cuStreamDestroy(stream) : cuStreamDestroy_v2(stream));
}
std::string sync(const Words& words) {  // sync [STREAM]
    return say(words.size() > 1 ? cuStreamSynchronize(stream_of(words[1])) : cuCtxSynchronize());
}

std::string query(const Words& words) {  // query STREAM
    return say(cuStreamQuery(stream_of(words[1])));
}

std::string fill(const Words& words) {  // fill NAME SEED [STREAM]
    Memory memory = memory_of(words[1]);
    uint64_t count = memory.size / 8, seed = number(words[2]);
    void* parameters[] = {&memory.address, &count, &seed};
    return say(launch("fill", words.size() > 3 ? stream_of(words[3]) : nullptr, parameters));
}

std::string check(const Words& words) {  // check NAME SEED: copied out and compared
    Memory memory = memory_of(words[1]);
    std::vector<uint64_t> host(memory.size / 8);
    CUresult result = cuMemcpyDtoH_v2(host.data(), memory.address, host.size() * 8);
    if (result != CUDA_SUCCESS) return say(result);
    for (size_t i = 0; i < host.size(); i++)
        if (host[i] != expected(number(words[2]), i)) return "wrong at " + std::to_string(i);
    return "right";
}

std::string spin(const Words& words) {  // spin MS STREAM
    uint32_t milliseconds = static_cast<uint32_t>(number(words[1]));
    void* parameters[] = {&milliseconds};
    return say(launch("spin", stream_of(words[2]), parameters));
}

std::string spin_sync(const Words& words) {  // spinsync MS STREAM
    std::string answer = spin(words);
    return answer == "ok" ? say(cuStreamSynchronize(stream_of(words[2]))) : answer;
}

std::string spin_until(const Words& words) {  // spinuntil NAME VALUE STREAM
    CUdeviceptr flag = memory_of(words[1]).address;
    uint32_t value = static_cast<uint32_t>(number(words[2]));
    void* parameters[] = {&flag, &value};
    return say(launch("spin_until", stream_of(words[3]), parameters));
}

// reduce NAME RANK EPOCH STREAM [CALLS [MS]]: one of two ranks that meet in NAME, whose data follow; first calls that
// take so long each
std::string reduce(const Words& words) {
    uint64_t shared = memory_of(words[1]).address, data = shared + 2048;
    uint32_t rank = static_cast<uint32_t>(number(words[2])), epoch = static_cast<uint32_t>(number(words[3]));
    uint32_t ranks = 2, count = 1, ms = words.size() > 6 ? static_cast<uint32_t>(number(words[6])) : 0;
    for (uint64_t i = 0; words.size() > 5 && i < number(words[5]); i++) {
        void* how_long[] = {&ms};
        launch("spin", stream_of(words[4]), how_long);
    }
    void* parameters[] = {&shared, &rank, &ranks, &epoch, &data, &count};
    return say(launch("cross_device_reduce", stream_of(words[4]), parameters));
}

// meetings NAME RANK COUNT CALLS STREAM…: so many meetings, on the streams in turn, each behind calls that take no time
std::string meetings(const Words& words) {
    for (uint64_t epoch = 1; epoch <= number(words[3]); epoch++) {
        const std::string& on = words[5 + (epoch - 1) % (words.size() - 5)];
        std::string said = reduce({"reduce", words[1], words[2], std::to_string(epoch), on, words[4]});
        if (said != "ok") return said;
    }
    return "ok";
}

std::string wait_value(const Words& words) {  // waitvalue NAME VALUE STREAM
    return say(cuStreamWaitValue32_v2(stream_of(words[3]), memory_of(words[1]).address,
                                      static_cast<uint32_t>(number(words[2])), 1));
}

std::string write_value(const Words& words) {  // writevalue NAME VALUE STREAM
    return say(cuStreamWriteValue32_v2(stream_of(words[3]), memory_of(words[1]).address,
                                       static_cast<uint32_t>(number(words[2])), 0));
}

std::string set_word(const Words& words) {  // setword NAME VALUE: every 32-bit word, from the host
    Memory memory = memory_of(words[1]);
    return say(cuMemsetD32_v2(memory.address, static_cast<unsigned int>(number(words[2])), memory.size / 4));
}

void wait_at_door(void*) {
    while (door.load() == 0) {
        timespec pause{0, 200000};
        nanosleep(&pause, nullptr);
    }
}

std::string callback(const Words& words) {  // callback STREAM: the stream goes on once the door is open
    door = 0;
    return say(cuLaunchHostFunc(stream_of(words[1]), wait_at_door, nullptr));
}

// opendoor CALLS STREAM: opens it, but only after so many gated calls
std::string open_door(const Words& words) {
    for (uint64_t i = 0; i < number(words[1]); i++) {
        uint32_t nothing = 0;
        void* parameters[] = {&nothing};
        CUresult result = launch("spin", stream_of(words[2]), parameters);
        if (result != CUDA_SUCCESS) return say(result);
    }
    door = 1;
    return "ok";
}

std::string begin_capture(const Words& words) {  // capture STREAM MODE
    return say(cuStreamBeginCapture_v2(stream_of(words[1]), static_cast<unsigned int>(number(words[2]))));
}

// endcapture STREAM [ptsz]: by the call of programs with streams per thread
std::string end_capture(const Words& words) {
    CUgraph graph = nullptr;
    bool per_thread = words.size() > 2;
    return say((per_thread ? cuStreamEndCapture_ptsz : cuStreamEndCapture)(stream_of(words[1]), &graph));
}

std::string graph(const Words& words) {  // graph NAME STREAM: of what was captured there
    CUgraph captured = nullptr;
    CUgraphExec made = nullptr;
    CUresult result = cuStreamEndCapture(stream_of(words[2]), &captured);
    if (result == CUDA_SUCCESS) result = cuGraphInstantiateWithFlags(&made, captured, 0);
    if (captured != nullptr) cuGraphDestroy(captured);
    std::lock_guard<std::mutex> guard(puppet.lock);
    if (result == CUDA_SUCCESS) puppet.graphs[words[1]] = made;
    return say(result);
}

CUgraphExec graph_of(const std::string& name) {
    std::lock_guard<std::mutex> guard(puppet.lock);
    return puppet.graphs[name];
}

std::string launch_graph(const Words& words) {  // launchgraph NAME STREAM
    return say(cuGraphLaunch(graph_of(words[1]), stream_of(words[2])));
}

std::string destroy_graph(const Words& words) {  // destroygraph NAME
    return say(cuGraphExecDestroy(graph_of(words[1])));
}

std::string join(const Words& words) {  // join STREAM CAPTURING: it takes part, as by an event of the other
    CUevent event = nullptr;
    CUresult result = cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
    if (result == CUDA_SUCCESS) result = cuEventRecord(event, stream_of(words[2]));
    if (result == CUDA_SUCCESS) result = cuStreamWaitEvent(stream_of(words[1]), event, 0);
    if (event != nullptr) cuEventDestroy_v2(event);
    return say(result);
}

std::string capture_mode(const Words& words) {  // capturemode MODE
    CUstreamCaptureMode mode = static_cast<CUstreamCaptureMode>(number(words[1]));
    CUresult result = cuThreadExchangeStreamCaptureMode(&mode);
    return result == CUDA_SUCCESS ? "ok " + std::to_string(mode) : say(result);
}

std::string free_bytes(const Words&) {  // freebytes
    size_t free = 0, total = 0;
    return say(cuMemGetInfo_v2(&free, &total));
}

}  // namespace

void add_work_commands(std::map<std::string, Command>& commands) {
    commands["init"] = init;
    commands["primary"] = primary;
    commands["primaryrelease"] = primary_release;
    commands["primaryreset"] = primary_reset;
    commands["context"] = context;
    commands["use"] = use;
    commands["destroy"] = destroy;
    commands["attach"] = attach;
    commands["detach"] = detach;
    commands["peer"] = peer;
    commands["unpeer"] = unpeer;
    commands["kernels"] = load_kernels;
    commands["stream"] = stream;
    commands["destroystream"] = destroy_stream;
    commands["sync"] = sync;
    commands["query"] = query;
    commands["fill"] = fill;
    commands["check"] = check;
    commands["spin"] = spin;
    commands["spinsync"] = spin_sync;
    commands["spinuntil"] = spin_until;
    commands["reduce"] = reduce;
    commands["meetings"] = meetings;
    commands["waitvalue"] = wait_value;
    commands["writevalue"] = write_value;
    commands["setword"] = set_word;
    commands["callback"] = callback;
    commands["opendoor"] = open_door;
    commands["capture"] = begin_capture;
    commands["endcapture"] = end_capture;
    commands["join"] = join;
    commands["graph"] = graph;
    commands["launchgraph"] = launch_graph;
    commands["destroygraph"] = destroy_graph;
    commands["capturemode"] = capture_mode;
    commands["freebytes"] = free_bytes;
}
