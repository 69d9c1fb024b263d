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

std::string own_alloc(const Words& words) {  // ownalloc NAME SIZE: in this thread's own stream
    CUdeviceptr address = 0;
    CUresult result = cuMemAllocAsync_ptsz(&address, number(words[2]), nullptr);
    if (result == CUDA_SUCCESS) remember(words[1], address, number(words[2]));
    return say(result);
}

std::string own_free(const Words& words) {  // ownfree NAME
    return say(cuMemFreeAsync_ptsz(memory_of(words[1]).address, nullptr));
}

// ---- pools: `default` is the first device's

std::map<std::string, CUmemoryPool> pools;

CUmemoryPool pool_of(const std::string& name) {
    CUmemoryPool pool = nullptr;
    if (name == "default") cuDeviceGetDefaultMemPool(&pool, 0);
    std::lock_guard<std::mutex> guard(puppet.lock);
    return pools.count(name) == 0 ? pool : pools[name];
}

std::string new_pool(const Words& words) {  // newpool NAME [HANDLETYPES [LIMIT]]
    CUmemPoolProps props{};
    props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    props.handleTypes = static_cast<CUmemAllocationHandleType>(words.size() > 2 ? number(words[2]) : 0);
    props.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    props.maxSize = words.size() > 3 ? number(words[3]) : 0;
    CUmemoryPool pool = nullptr;
    CUresult result = cuMemPoolCreate(&pool, &props);
    std::lock_guard<std::mutex> guard(puppet.lock);
    if (result == CUDA_SUCCESS) pools[words[1]] = pool;
    return say(result);
}

std::string delete_pool(const Words& words) {  // deletepool NAME
    return say(cuMemPoolDestroy(pool_of(words[1])));
}

std::string set_pool(const Words& words) {  // setpool NAME
    return say(cuDeviceSetMemPool(0, pool_of(words[1])));
}

std::string alloc_from(const Words& words) {  // poolalloc NAME SIZE STREAM POOL
    CUdeviceptr address = 0;
    CUresult result = cuMemAllocFromPoolAsync(&address, number(words[2]), pool_of(words[4]), stream_of(words[3]));
    if (result == CUDA_SUCCESS) remember(words[1], address, number(words[2]));
    return say(result);
}

std::string trim(const Words& words) {  // trim POOL KEEP
    return say(cuMemPoolTrimTo(pool_of(words[1]), number(words[2])));
}

std::string pool_attribute(const Words& words) {  // poolattribute POOL WHICH
    uint64_t value = 0;
    CUresult result = cuMemPoolGetAttribute(pool_of(words[1]), static_cast<unsigned>(number(words[2])), &value);
    return result == CUDA_SUCCESS ? "ok " + std::to_string(value) : say(result);
}

std::string set_pool_attribute(const Words& words) {  // setpoolattribute POOL WHICH VALUE
    uint64_t value = number(words[3]);
    return say(cuMemPoolSetAttribute(pool_of(words[1]), static_cast<unsigned>(number(words[2])), &value));
}

std::string from_pool(const Words& words) {  // frompool NAME POOL: as its pointer says
    CUmemoryPool pool = nullptr;
    CUresult result = cuPointerGetAttribute(&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, memory_of(words[1]).address);
    return result == CUDA_SUCCESS ? (pool == pool_of(words[2]) ? "yes" : "no") : say(result);
}

std::string admit(const Words& words) {  // admit POOL DEVICE FLAGS
    CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, static_cast<int>(number(words[2]))},
                           static_cast<CUmemAccess_flags>(number(words[3]))};
    return say(cuMemPoolSetAccess(pool_of(words[1]), &access, 1));
}

std::string same_place(const Words& words) {  // sameplace NAME NAME: do they overlap?
    Memory a = memory_of(words[1]), b = memory_of(words[2]);
    return a.address < b.address + b.size && b.address < a.address + a.size ? "yes" : "no";
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
    commands["ownalloc"] = own_alloc;
    commands["ownfree"] = own_free;
    commands["newpool"] = new_pool;
    commands["deletepool"] = delete_pool;
    commands["setpool"] = set_pool;
    commands["poolalloc"] = alloc_from;
    commands["trim"] = trim;
    commands["poolattribute"] = pool_attribute;
    commands["setpoolattribute"] = set_pool_attribute;
    commands["frompool"] = from_pool;
    commands["admit"] = admit;
    commands["sameplace"] = same_place;
}
