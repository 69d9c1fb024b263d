// SPDX-License-Identifier: Apache-2.0
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "puppet.h"

namespace {

CUmemGenericAllocationHandle handle_of(const std::string& name) {
    std::lock_guard<std::mutex> guard(puppet.lock);
    return puppet.handles.count(name) == 0 ? 0 : puppet.handles[name];
}

void remember(const std::string& name, CUmemGenericAllocationHandle handle) {
    std::lock_guard<std::mutex> guard(puppet.lock);
    puppet.handles[name] = handle;
}

CUmemAllocationProp device_memory(int device, unsigned int types) {
    CUmemAllocationProp prop{};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
    prop.requestedHandleTypes = types;
    return prop;
}

std::string create(const Words& words) {  // create HANDLE SIZE [TYPES] [DEVICE]
    CUmemAllocationProp prop = device_memory(words.size() > 4 ? static_cast<int>(number(words[4])) : 0,
                                             words.size() > 3 ? static_cast<unsigned int>(number(words[3])) : 0);
    CUmemGenericAllocationHandle handle = 0;
    CUresult result = cuMemCreate(&handle, number(words[2]), &prop, 0);
    if (result == CUDA_SUCCESS) remember(words[1], handle);
    return say(result);
}

std::string reserve(const Words& words) {  // reserve NAME SIZE
    CUdeviceptr address = 0;
    CUresult result = cuMemAddressReserve(&address, number(words[2]), 0, 0, 0);
    std::lock_guard<std::mutex> guard(puppet.lock);
    if (result == CUDA_SUCCESS) puppet.memory[words[1]] = {address, number(words[2])};
    return say(result);
}

std::string unreserve(const Words& words) {  // unreserve NAME
    Memory memory = memory_of(words[1]);
    return say(cuMemAddressFree(memory.address, memory.size));
}

std::string map(const Words& words) {  // map NAME OFFSET SIZE HANDLE
    return say(cuMemMap(memory_of(words[1]).address + number(words[2]), number(words[3]), 0, handle_of(words[4]), 0));
}

std::string unmap(const Words& words) {  // unmap NAME OFFSET SIZE
    return say(cuMemUnmap(memory_of(words[1]).address + number(words[2]), number(words[3])));
}

std::string access(const Words& words) {  // access NAME OFFSET SIZE DEVICE FLAGS
    CUmemAccessDesc desc{{CU_MEM_LOCATION_TYPE_DEVICE, static_cast<int>(number(words[4]))},
                         static_cast<unsigned int>(number(words[5]))};
    return say(cuMemSetAccess(memory_of(words[1]).address + number(words[2]), number(words[3]), &desc, 1));
}

std::string get_access(const Words& words) {  // getaccess NAME OFFSET DEVICE
    CUmemLocation location{CU_MEM_LOCATION_TYPE_DEVICE, static_cast<int>(number(words[3]))};
    unsigned long long flags = 0;
    CUresult result = cuMemGetAccess(&flags, &location, memory_of(words[1]).address + number(words[2]));
    return result == CUDA_SUCCESS ? "ok " + std::to_string(flags) : say(result);
}

std::string release(const Words& words) {
    return say(cuMemRelease(handle_of(words[1])));
}

std::string retain(const Words& words) {  // retain HANDLE NAME OFFSET; says whether it is one we know
    CUmemGenericAllocationHandle handle = 0;
    void* address = reinterpret_cast<void*>(memory_of(words[2]).address + number(words[3]));
    CUresult result = cuMemRetainAllocationHandle(&handle, address);
    if (result != CUDA_SUCCESS) return say(result);
    for (auto& [name, known] : puppet.handles)
        if (known == handle) return "ok " + name;
    remember(words[1], handle);
    return "ok new";
}

std::string properties(const Words& words) {  // properties HANDLE
    CUmemAllocationProp prop{};
    CUresult result = cuMemGetAllocationPropertiesFromHandle(&prop, handle_of(words[1]));
    if (result != CUDA_SUCCESS) return say(result);
    return "ok type=" + std::to_string(prop.type) + " types=" + std::to_string(prop.requestedHandleTypes) +
           " device=" + std::to_string(prop.location.id) +
           " rdma=" + std::to_string(prop.allocFlags.gpuDirectRDMACapable);
}

std::string export_it(const Words& words) {  // export FILE HANDLE TYPE
    int file = -1;
    CUresult result =
        cuMemExportToShareableHandle(&file, handle_of(words[2]), static_cast<unsigned int>(number(words[3])), 0);
    if (result == CUDA_SUCCESS) puppet.files[words[1]] = file;
    return say(result);
}

std::string import_it(const Words& words) {  // import HANDLE FILE
    CUmemGenericAllocationHandle handle = 0;
    void* file = reinterpret_cast<void*>(static_cast<intptr_t>(puppet.files[words[2]]));
    CUresult result = cuMemImportFromShareableHandle(&handle, file, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    if (result == CUDA_SUCCESS) remember(words[1], handle);
    return say(result);
}

std::string fetch(const Words& words) {  // fetch FILE PID NUMBER: as torch's expandable segments do
    constexpr long kOpenPid = 434, kGetDescriptor = 438;
    long process = syscall(kOpenPid, number(words[2]), 0);
    long file = syscall(kGetDescriptor, process, number(words[3]), 0);
    close(static_cast<int>(process));
    if (file >= 0) puppet.files[words[1]] = static_cast<int>(file);
    return file >= 0 ? "ok" : "failed";
}

std::string number_of(const Words& words) {  // numberof FILE
    return std::to_string(puppet.files[words[1]]);
}

std::string close_it(const Words& words) {
    return close(puppet.files[words[1]]) == 0 ? "ok" : "failed";
}

std::string known_ids(const Words&) {  // ids are never reused: how many different ones there are
    return std::to_string(puppet.handles.size());
}

std::string churn_ids(const Words& words) {  // churnids COUNT SIZE: create and release; says whether an id came twice
    std::map<CUmemGenericAllocationHandle, bool> seen;
    CUmemAllocationProp prop = device_memory(0, 0);
    for (uint64_t i = 0; i < number(words[1]); i++) {
        CUmemGenericAllocationHandle handle = 0;
        CUresult result = cuMemCreate(&handle, number(words[2]), &prop, 0);
        if (result != CUDA_SUCCESS) return say(result);
        if (seen[handle]) return "twice";
        seen[handle] = true;
        cuMemRelease(handle);
    }
    return "never twice";
}

}  // namespace

void add_virtual_commands(std::map<std::string, Command>& commands) {
    commands["create"] = create;
    commands["reserve"] = reserve;
    commands["unreserve"] = unreserve;
    commands["map"] = map;
    commands["unmap"] = unmap;
    commands["access"] = access;
    commands["getaccess"] = get_access;
    commands["release"] = release;
    commands["retain"] = retain;
    commands["properties"] = properties;
    commands["export"] = export_it;
    commands["import"] = import_it;
    commands["close"] = close_it;
    commands["fetch"] = fetch;
    commands["numberof"] = number_of;
    commands["ids"] = known_ids;
    commands["churnids"] = churn_ids;
}
