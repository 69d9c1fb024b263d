// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "puppet.h"

namespace {

void remember(const std::string& name, CUdeviceptr address, size_t size) {
    std::lock_guard<std::mutex> guard(puppet.lock);
    puppet.memory[name] = {address, size};
}

std::string alloc(const Words& words) {  // alloc NAME SIZE
    CUdeviceptr address = 0;
    CUresult result = cuMemAlloc_v2(&address, number(words[2]));
    if (result == CUDA_SUCCESS) remember(words[1], address, number(words[2]));
    return say(result);
}

std::string alloc_many(const Words& words) {  // allocmany PREFIX COUNT SIZE
    for (uint64_t i = 0; i < number(words[2]); i++) {
        CUdeviceptr address = 0;
        CUresult result = cuMemAlloc_v2(&address, number(words[3]));
        if (result != CUDA_SUCCESS) return say(result) + " at " + std::to_string(i);
        remember(words[1] + std::to_string(i), address, number(words[3]));
    }
    return "ok";
}

std::string free_many(const Words& words) {  // freemany PREFIX FIRST COUNT
    for (uint64_t i = number(words[2]); i < number(words[2]) + number(words[3]); i++) {
        CUresult result = cuMemFree_v2(memory_of(words[1] + std::to_string(i)).address);
        if (result != CUDA_SUCCESS) return say(result) + " at " + std::to_string(i);
    }
    return "ok";
}

std::string free_it(const Words& words) {  // free NAME [OFFSET]
    uint64_t offset = words.size() > 2 ? number(words[2]) : 0;
    return say(cuMemFree_v2(memory_of(words[1]).address + offset));
}

std::string pitch(const Words& words) {  // pitch NAME WIDTH HEIGHT ELEMENT
    CUdeviceptr address = 0;
    size_t found = 0;
    CUresult result = cuMemAllocPitch_v2(&address, &found, number(words[2]), number(words[3]), number(words[4]));
    if (result != CUDA_SUCCESS) return say(result);
    remember(words[1], address, found * number(words[3]));
    return "ok " + std::to_string(found);
}

std::string range(const Words& words) {  // range NAME OFFSET: where it begins, how long it is
    Memory memory = memory_of(words[1]);
    CUdeviceptr base = 0;
    size_t size = 0;
    CUresult result = cuMemGetAddressRange_v2(&base, &size, memory.address + number(words[2]));
    if (result != CUDA_SUCCESS) return say(result);
    return "ok " + std::to_string(static_cast<long long>(base - memory.address)) + " " + std::to_string(size);
}

// An address is told as its distance from the allocation, a context by its name: the same bare and preloaded.
std::string show(unsigned int attribute, const unsigned char* data, const Memory& memory) {
    uint64_t value = 0;
    memcpy(&value, data, 8);
    if (attribute == CU_POINTER_ATTRIBUTE_CONTEXT) {
        for (auto& [name, context] : puppet.contexts)
            if (reinterpret_cast<uint64_t>(context) == value) return name;
        return value == 0 ? "none" : "another";
    }
    if (attribute == CU_POINTER_ATTRIBUTE_DEVICE_POINTER || attribute == CU_POINTER_ATTRIBUTE_RANGE_START_ADDR)
        return std::to_string(static_cast<long long>(value - memory.address));
    if (attribute == CU_POINTER_ATTRIBUTE_BUFFER_ID) return value != 0 ? "some" : "0";
    return std::to_string(value);
}

std::string attribute(const Words& words) {  // attribute NAME OFFSET NUMBER
    Memory memory = memory_of(words[1]);
    unsigned char data[64] = {};
    unsigned int which = static_cast<unsigned int>(number(words[3]));
    CUresult result = cuPointerGetAttribute(data, which, memory.address + number(words[2]));
    return result == CUDA_SUCCESS ? "ok " + show(which, data, memory) : say(result);
}

std::string attributes(const Words& words) {  // attributes NAME OFFSET NUMBER…
    Memory memory = memory_of(words[1]);
    unsigned int which[32];
    unsigned char data[32][64] = {};
    void* places[32];
    unsigned int count = 0;
    for (size_t i = 3; i < words.size(); i++) {
        places[count] = data[count];
        which[count++] = static_cast<unsigned int>(number(words[i]));
    }
    CUresult result = cuPointerGetAttributes(count, which, places, memory.address + number(words[2]));
    std::string answer = say(result);
    for (unsigned int i = 0; i < count; i++) answer += " " + show(which[i], data[i], memory);
    return answer;
}

std::string distinct_buffers(const Words& words) {  // buffers A B: do they have different buffer ids?
    unsigned long long a = 0, b = 0;
    cuPointerGetAttribute(&a, CU_POINTER_ATTRIBUTE_BUFFER_ID, memory_of(words[1]).address);
    cuPointerGetAttribute(&b, CU_POINTER_ATTRIBUTE_BUFFER_ID, memory_of(words[2]).address);
    return a != b ? "different" : "same";
}

std::string sync_memops(const Words& words) {  // syncmemops NAME VALUE
    unsigned int value = static_cast<unsigned int>(number(words[2]));
    return say(cuPointerSetAttribute(&value, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, memory_of(words[1]).address));
}

std::string aligned(const Words& words) {  // aligned NAME TO
    return memory_of(words[1]).address % number(words[2]) == 0 ? "yes" : "no";
}

std::string pin(const Words& words) {  // pin NAME SIZE
    void* pointer = nullptr;
    CUresult result = cuMemHostAlloc(&pointer, number(words[2]), 0);
    if (result == CUDA_SUCCESS) puppet.host[words[1]] = pointer;
    return say(result);
}

std::string unpin(const Words& words) {
    return say(cuMemFreeHost(puppet.host[words[1]]));
}

std::string managed(const Words& words) {  // managed NAME SIZE
    CUdeviceptr address = 0;
    CUresult result = cuMemAllocManaged(&address, number(words[2]), 1);
    if (result == CUDA_SUCCESS) remember(words[1], address, number(words[2]));
    return say(result);
}

std::string alloc_async(const Words& words) {  // asyncalloc NAME SIZE STREAM
    CUdeviceptr address = 0;
    CUresult result = cuMemAllocAsync(&address, number(words[2]), stream_of(words[3]));
    if (result == CUDA_SUCCESS) remember(words[1], address, number(words[2]));
    return say(result);
}

std::string free_async(const Words& words) {  // asyncfree NAME STREAM
    return say(cuMemFreeAsync(memory_of(words[1]).address, stream_of(words[2])));
}

}  // namespace

void add_memory_commands(std::map<std::string, Command>& commands) {
    commands["alloc"] = alloc;
    commands["allocmany"] = alloc_many;
    commands["freemany"] = free_many;
    commands["free"] = free_it;
    commands["pitch"] = pitch;
    commands["range"] = range;
    commands["attribute"] = attribute;
    commands["attributes"] = attributes;
    commands["buffers"] = distinct_buffers;
    commands["syncmemops"] = sync_memops;
    commands["aligned"] = aligned;
    commands["pin"] = pin;
    commands["unpin"] = unpin;
    commands["managed"] = managed;
    commands["asyncalloc"] = alloc_async;
    commands["asyncfree"] = free_async;
}
