// SPDX-License-Identifier: Apache-2.0
#include "cuda/driver.h"

#include <string.h>

namespace gcr {
namespace cuda {
namespace {

struct Facts {
    std::atomic<uint32_t> known{0};
    DeviceFacts facts{};
    std::atomic<uint32_t> named{0};
    uint8_t uuid[16] = {};
};

Facts devices[kMaxDevices];

bool attribute(CUdevice device, CUdevice_attribute which) {
    int value = 0;
    return real::cuDeviceGetAttribute(&value, which, device) == CUDA_SUCCESS && value != 0;
}

uint64_t granularity_of(CUdevice device) {
    CUmemAllocationProp prop{};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
    size_t granularity = 0;
    CUresult asked = real::cuMemGetAllocationGranularity(&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    return asked == CUDA_SUCCESS ? granularity : 0;
}

DeviceFacts ask_device(CUdevice device) {
    DeviceFacts facts{};
    facts.granularity = granularity_of(device);
    facts.vmm = facts.granularity > 0 && attribute(device, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) &&
                attribute(device, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
    facts.rdma = attribute(device, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
    return facts;
}

uint32_t describe(CUmemAccessDesc* descriptions, uint32_t devices_in, CUmemAccess_flags flags, uint32_t count) {
    for (int device = 0; device < kMaxDevices; device++)
        if ((devices_in & device_bit(device)) != 0)
            descriptions[count++] = {{CU_MEM_LOCATION_TYPE_DEVICE, device}, flags};
    return count;
}

}  // namespace

CurrentContext::CurrentContext(CUcontext context) {
    if (context != nullptr) pushed_ = real::cuCtxPushCurrent_v2(context) == CUDA_SUCCESS;
}

CurrentContext::~CurrentContext() {
    CUcontext popped = nullptr;
    if (pushed_) real::cuCtxPopCurrent_v2(&popped);
}

PinnedContext::PinnedContext(CUdevice device) {
    Guard guard(state.lock);
    for (Context* context : state.contexts)
        if (context_ == nullptr || context->device == device) context_ = context;
    if (context_ != nullptr) context_->pins++;
}

PinnedContext::PinnedContext(CUcontext handle) {
    Guard guard(state.lock);
    for (Context* context : state.contexts)
        if (context->handle == handle) context_ = context;
    if (context_ != nullptr) context_->pins++;
}

PinnedContext::~PinnedContext() {
    if (context_ != nullptr) context_->pins--;
}

// Two threads may ask at once; both get, and store, the same answer.
DeviceFacts device_facts(CUdevice device) {
    if (device < 0 || device >= kMaxDevices) return {};
    Facts& entry = devices[device];
    if (entry.known.load(std::memory_order_acquire) == 2) return entry.facts;
    DeviceFacts facts = ask_device(device);
    uint32_t unknown = 0;
    if (entry.known.compare_exchange_strong(unknown, 1)) {
        entry.facts = facts;
        entry.known.store(2, std::memory_order_release);  // pairs with the acquire above
    }
    return facts;
}

uint32_t device_count() {
    static std::atomic<int> known{-1};
    int count = known.load(std::memory_order_relaxed);
    if (count >= 0) return static_cast<uint32_t>(count);
    if (real::cuDeviceGetCount(&count) != CUDA_SUCCESS || count < 0) return 0;
    if (count > kMaxDevices) count = kMaxDevices;
    known.store(count, std::memory_order_relaxed);
    return static_cast<uint32_t>(count);
}

void device_uuid(CUdevice device, uint8_t uuid[16]) {
    memset(uuid, 0, 16);
    if (device < 0 || device >= kMaxDevices) return;
    Facts& entry = devices[device];
    if (entry.named.load(std::memory_order_acquire) == 0) {
        CUuuid found{};
        bool v2 = real::has_cuDeviceGetUuid_v2();
        CUresult asked = v2 ? real::cuDeviceGetUuid_v2(&found, device) : real::cuDeviceGetUuid(&found, device);
        if (asked != CUDA_SUCCESS) return;
        memcpy(entry.uuid, found.bytes, sizeof found.bytes);
        entry.named.store(1, std::memory_order_release);
    }
    memcpy(uuid, entry.uuid, sizeof entry.uuid);
}

CUresult set_access(CUdeviceptr address, uint64_t size, uint32_t read, uint32_t write) {
    CUmemAccessDesc descriptions[2 * kMaxDevices];
    uint32_t count = describe(descriptions, write, CU_MEM_ACCESS_FLAGS_PROT_READWRITE, 0);
    count = describe(descriptions, read & ~write, CU_MEM_ACCESS_FLAGS_PROT_READ, count);
    return count == 0 ? CUDA_SUCCESS : real::cuMemSetAccess(address, size, descriptions, count);
}

CUresult drop_access(CUdeviceptr address, uint64_t size, uint32_t devices_in) {
    CUmemAccessDesc descriptions[kMaxDevices];
    uint32_t count = describe(descriptions, devices_in, CU_MEM_ACCESS_FLAGS_PROT_NONE, 0);
    return count == 0 ? CUDA_SUCCESS : real::cuMemSetAccess(address, size, descriptions, count);
}

}  // namespace cuda
}  // namespace gcr
