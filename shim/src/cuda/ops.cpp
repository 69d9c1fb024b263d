// SPDX-License-Identifier: Apache-2.0
//
// CUDA's operations on device memory: one driver call each.
#include "cuda/ops.h"

#include "cuda/captures.h"
#include "cuda/driver.h"
#include "cuda/stream_order.h"
#include "device/devices.h"

namespace gcr {
namespace cuda {
namespace {

using device::Entered;
using device::Facts;
using device::kMaxDevices;
using device::Result;

constexpr uint32_t kRdma = 1;  // Facts::extras: GPUDirect RDMA reaches mapped memory, if created so

// ---- devices ------------------------------------------------------------------------------------------------------

uint32_t count_devices() {
    int count = 0;
    return real::cuDeviceGetCount(&count) == CUDA_SUCCESS && count > 0 ? static_cast<uint32_t>(count) : 0;
}

bool ask_uuid(CUdevice device, uint8_t uuid[16]) {
    CUuuid found{};
    bool v2 = real::has_cuDeviceGetUuid_v2();
    CUresult asked = v2 ? real::cuDeviceGetUuid_v2(&found, device) : real::cuDeviceGetUuid(&found, device);
    if (asked == CUDA_SUCCESS) memcpy(uuid, found.bytes, sizeof found.bytes);
    return asked == CUDA_SUCCESS;
}

bool attribute(CUdevice device, CUdevice_attribute which) {
    int value = 0;
    return real::cuDeviceGetAttribute(&value, which, device) == CUDA_SUCCESS && value != 0;
}

CUmemAllocationProp plain_memory(CUdevice device) {
    CUmemAllocationProp prop{};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
    return prop;
}

uint64_t granularity_of(CUdevice device, bool exports) {
    CUmemAllocationProp prop = plain_memory(device);
    if (exports) prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    size_t granularity = 0;
    CUresult asked = real::cuMemGetAllocationGranularity(&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    return asked == CUDA_SUCCESS ? granularity : 0;
}

Facts ask_device(CUdevice device) {
    Facts facts{};
    facts.copied_only = !attribute(device, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
    facts.granularity = granularity_of(device, !facts.copied_only);
    facts.shareable =
        facts.granularity > 0 && attribute(device, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
    if (attribute(device, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED)) facts.extras = kRdma;
    return facts;
}

void enter(CUdevice device, Entered* entered) {
    Context* context = pin_context(device);
    entered->words[0] = reinterpret_cast<uint64_t>(context);
    entered->words[1] = context != nullptr && real::cuCtxPushCurrent_v2(context->handle) == CUDA_SUCCESS;
}

void leave(const Entered& entered) {
    CUcontext popped = nullptr;
    if (entered.words[1] != 0) real::cuCtxPopCurrent_v2(&popped);
    unpin_context(reinterpret_cast<Context*>(entered.words[0]));
}

// cuMemFree of a pool's memory does not wait (CUDA C++ Programming Guide, "Stream Ordered Memory Allocator"): the driver
// takes the program to be done with it.
Result synchronize(device::Owner* owner) {
    if (owner->pool != nullptr) return CUDA_SUCCESS;
    Context* context = static_cast<Context*>(owner);
    CUcontext current = nullptr;
    real::cuCtxGetCurrent(&current);
    if (current == context->handle) return real::cuCtxSynchronize();
    CurrentContext scope(context->handle);
    return real::cuCtxSynchronize();
}

// ---- addresses ----------------------------------------------------------------------------------------------------

Result reserve(uint64_t size, uint64_t wanted, uint64_t* address) {
    CUdeviceptr given = 0;
    CUresult result = real::cuMemAddressReserve(&given, size, 0, wanted, 0);
    if (result != CUDA_SUCCESS) return result;
    if (wanted == 0 || given == wanted) {
        *address = given;
        return CUDA_SUCCESS;
    }
    real::cuMemAddressFree(given, size);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

Result give_back(uint64_t address, uint64_t size) {
    return real::cuMemAddressFree(address, size);
}

// ---- physical memory ----------------------------------------------------------------------------------------------

Properties plain(CUdevice device) {
    return Properties::of(plain_memory(device));
}

int device_of(const Properties& asked) {
    return asked.as<CUmemAllocationProp>().location.id;
}

bool exportable(const Properties& asked) {
    return (asked.as<CUmemAllocationProp>().requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0;
}

void describe(const Properties& properties, wire::HandleRecord* record) {
    auto asked = properties.as<CUmemAllocationProp>();
    record->type = asked.type;
    record->asked_types = asked.requestedHandleTypes;
    record->compression = asked.allocFlags.compressionType;
    record->rdma_capable = asked.allocFlags.gpuDirectRDMACapable;
    record->usage = asked.allocFlags.usage;
}

Result create(uint64_t size, const Properties& asked, uint64_t flags, bool export_too, uint64_t* real) {
    auto form = asked.as<CUmemAllocationProp>();
    if (export_too) {
        form.requestedHandleTypes |= CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        if ((device::facts_of(state, form.location.id).extras & kRdma) != 0) form.allocFlags.gpuDirectRDMACapable = 1;
    }
    CUmemGenericAllocationHandle made = 0;
    CUresult result = real::cuMemCreate(&made, size, &form, flags);
    *real = made;
    return result;
}

Result release(uint64_t real) {
    return real::cuMemRelease(real);
}

Result export_fd(uint64_t real, int* descriptor) {
    return real::cuMemExportToShareableHandle(descriptor, real, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
}

Result import_fd(int descriptor, uint64_t* real) {
    void* os_handle = reinterpret_cast<void*>(static_cast<intptr_t>(descriptor));
    CUmemGenericAllocationHandle made = 0;
    CUresult result = real::cuMemImportFromShareableHandle(&made, os_handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    *real = made;
    return result;
}

// ---- mappings -----------------------------------------------------------------------------------------------------

Result map(uint64_t address, uint64_t size, uint64_t offset, uint64_t real) {
    return real::cuMemMap(address, size, offset, real, 0);
}

Result unmap(uint64_t address, uint64_t size) {
    return real::cuMemUnmap(address, size);
}

uint32_t describe(CUmemAccessDesc* descriptions, uint32_t devices, CUmemAccess_flags flags, uint32_t count) {
    for (int device = 0; device < kMaxDevices; device++)
        if ((devices & device::device_bit(device)) != 0)
            descriptions[count++] = {{CU_MEM_LOCATION_TYPE_DEVICE, device}, flags};
    return count;
}

Result set_access(uint64_t address, uint64_t size, uint32_t read, uint32_t write) {
    CUmemAccessDesc descriptions[kMaxDevices];
    uint32_t count = describe(descriptions, write, CU_MEM_ACCESS_FLAGS_PROT_READWRITE, 0);
    count = describe(descriptions, read & ~write, CU_MEM_ACCESS_FLAGS_PROT_READ, count);
    return count == 0 ? CUDA_SUCCESS : real::cuMemSetAccess(address, size, descriptions, count);
}

Result drop_access(uint64_t address, uint64_t size, uint32_t devices) {
    CUmemAccessDesc descriptions[kMaxDevices];
    uint32_t count = describe(descriptions, devices, CU_MEM_ACCESS_FLAGS_PROT_NONE, 0);
    return count == 0 ? CUDA_SUCCESS : real::cuMemSetAccess(address, size, descriptions, count);
}

// ---- bytes --------------------------------------------------------------------------------------------------------

Result copy_to_host(void* host, uint64_t address, uint64_t size) {
    return real::cuMemcpyDtoH_v2(host, address, size);
}

// From pageable memory the call returns once the bytes are staged, on their way still: an unmap then faults the
// context (719 on an H200 with r580).
Result copy_to_device(uint64_t address, const void* host, uint64_t size) {
    CUresult result = real::cuMemcpyHtoD_v2(address, host, size);
    return result == CUDA_SUCCESS ? real::cuCtxSynchronize() : result;
}

// Within a device the call returns while the copy is on its way.
Result copy_within(uint64_t to, uint64_t from, uint64_t size) {
    CUresult result = real::cuMemcpyDtoD_v2(to, from, size);
    return result == CUDA_SUCCESS ? real::cuCtxSynchronize() : result;
}

constexpr device::DeviceOps table() {
    device::DeviceOps ops{};
    ops.vendor = wire::kNvidia;
    ops.names = {"cuMemUnmap", "cuMemSetAccess", "cuMemExportToShareableHandle", "cuMemImportFromShareableHandle"};
    ops.out_of_memory = CUDA_ERROR_OUT_OF_MEMORY;
    ops.invalid_value = CUDA_ERROR_INVALID_VALUE;
    ops.not_supported = CUDA_ERROR_NOT_SUPPORTED;
    ops.count = count_devices;
    ops.uuid = ask_uuid;
    ops.facts = ask_device;
    ops.enter = enter;
    ops.leave = leave;
    ops.synchronize = synchronize;
    ops.captures = captures_in_progress;
    ops.reserve = reserve;
    ops.give_back = give_back;
    ops.plain = plain;
    ops.device_of = device_of;
    ops.exportable = exportable;
    ops.describe = describe;
    ops.create = create;
    ops.release = release;
    ops.export_fd = export_fd;
    ops.import_fd = import_fd;
    ops.map = map;
    ops.unmap = unmap;
    ops.set_access = set_access;
    ops.drop_access = drop_access;
    ops.copy_to_host = copy_to_host;
    ops.copy_to_device = copy_to_device;
    ops.copy_within = copy_within;
    ops.capturing = capturing;
    ops.idle = idle;
    ops.mark = mark;
    ops.passed = passed;
    ops.follow = follow;
    ops.forget_event = forget_event;
    return ops;
}

}  // namespace

constexpr device::DeviceOps kDeviceOps = table();

State state(kDeviceOps);  // constant: a constructor of the program may call the driver before any of ours could run

}  // namespace cuda
}  // namespace gcr
