// SPDX-License-Identifier: Apache-2.0
//
// The program's own virtual memory: physical memory behind virtual handles, wherever it maps it; and its handles that
// leave for, or come from, other processes. Those work as they do bare, and are never moved.
#include "acl/contexts.h"
#include "acl/memory.h"
#include "device/devices.h"
#include "device/held.h"
#include "device/mappings.h"
#include "device/physical.h"
#include "hooks/acl_calls.h"

namespace gcr {
namespace acl {
namespace {

using device::Held;

bool on_a_device(const aclrtPhysicalMemProp& asked) {
    return asked.location.type == ACL_MEM_LOCATION_TYPE_DEVICE;
}

aclError create(size_t size, const aclrtPhysicalMemProp& asked, uint64_t flags, uint64_t* made) {
    if (!on_a_device(asked)) return state.ops->create(size, Properties::of(asked), flags, false, made);
    device::Physical physical{};
    aclError result = device::create_physical(state, size, Properties::of(asked), flags, &physical);
    *made = physical.real;
    return result;
}

aclError give_id(aclrtDrvMemHandle* out, uint64_t made, uint64_t size, const aclrtPhysicalMemProp& asked,
                 Reason reason) {
    uint64_t id = 0;
    aclError result = device::give_id(state, made, size, Properties::of(asked), reason, &id);
    if (result == ACL_SUCCESS) *out = pointer_at(id);
    return result;
}

uint64_t size_of_mapping(uint64_t address) {
    Guard guard(state.lock);
    const Mapping* mapping = state.mappings.find(address);
    return mapping == nullptr ? 0 : mapping->size;
}

void record_access(uint64_t address, size_t size, const aclrtMemAccessDesc& desc) {
    bool may_read = desc.flags != ACL_RT_MEM_ACCESS_FLAGS_NONE;
    bool may_write = desc.flags == ACL_RT_MEM_ACCESS_FLAGS_READWRITE;
    if (desc.location.type == ACL_MEM_LOCATION_TYPE_DEVICE)
        device::record_access(state, address, size, static_cast<int>(desc.location.id), may_read, may_write);
    else
        device::uncover_range(state, address, size, wire::kReasonHostNuma);
}

// From now on someone else may hold this memory.
aclError exported(aclError result, Handle* handle) {
    if (result != ACL_SUCCESS || handle == nullptr) return result;
    Guard guard(state.lock);
    device::uncover(handle, wire::kReasonShareableExport);
    return result;
}

aclError imported(aclError result, aclrtDrvMemHandle* handle, aclrtDrvMemHandle made) {
    if (result != ACL_SUCCESS) return result;
    aclrtPhysicalMemProp asked{};
    real::aclrtMemGetAllocationPropertiesFromHandle(made, &asked);
    return give_id(handle, key_of(made), 0, asked, wire::kReasonShareableImport);
}

}  // namespace

aclError on_aclrtMallocPhysical(aclrtDrvMemHandle* handle, size_t size, const aclrtPhysicalMemProp* prop,
                                uint64_t flags) {
    if (handle == nullptr || prop == nullptr) return real::aclrtMallocPhysical(handle, size, prop, flags);
    uint64_t made = 0;
    aclError result = create(size, *prop, flags, &made);
    if (result != ACL_SUCCESS) return result;
    return give_id(handle, made, size, *prop, on_a_device(*prop) ? kCovered : wire::kReasonHostNuma);
}

aclError on_aclrtFreePhysical(aclrtDrvMemHandle handle) {
    device::Result result;
    if (device::release_reference(state, key_of(handle), &result)) return result;
    return real::aclrtFreePhysical(pointer_at(device::as_passed_on(key_of(handle))));
}

aclError on_aclrtMapMem(void* virPtr, size_t size, size_t offset, aclrtDrvMemHandle handle, uint64_t flags) {
    Held held(state, key_of(handle));
    aclError result = real::aclrtMapMem(virPtr, size, offset, pointer_at(held.real()), flags);
    if (result != ACL_SUCCESS || held.get() == nullptr) return result;
    result = device::record_mapping(state, held.get(), key_of(virPtr), size, offset);
    if (result == ACL_SUCCESS) device::record_access(state, key_of(virPtr), size, held.get()->device, true, true);
    return result;
}

aclError on_aclrtUnmapMem(void* virPtr) {
    uint64_t size = size_of_mapping(key_of(virPtr));
    if (size == 0) return real::aclrtUnmapMem(virPtr);  // the runtime's own error
    return device::unmap_range(state, key_of(virPtr), size);
}

aclError on_aclrtMemSetAccess(void* virPtr, size_t size, aclrtMemAccessDesc* desc, size_t count) {
    if (device::touches_internal(state, key_of(virPtr), size)) return ACL_ERROR_RT_PARAM_INVALID;
    aclError result = real::aclrtMemSetAccess(virPtr, size, desc, count);
    for (size_t i = 0; result == ACL_SUCCESS && desc != nullptr && i < count; i++)
        record_access(key_of(virPtr), size, desc[i]);
    return result;
}

aclError on_aclrtMemGetAccess(void* virPtr, aclrtMemLocation* location, uint64_t* flag) {
    if (device::touches_internal(state, key_of(virPtr), 1)) return ACL_ERROR_RT_PARAM_INVALID;
    return real::aclrtMemGetAccess(virPtr, location, flag);
}

aclError on_aclrtMemRetainAllocationHandle(void* virPtr, aclrtDrvMemHandle* handle) {
    uint64_t id = 0;
    if (!device::retain_at(state, key_of(virPtr), handle == nullptr ? nullptr : &id))
        return real::aclrtMemRetainAllocationHandle(virPtr, handle);
    if (id == 0) return ACL_ERROR_RT_PARAM_INVALID;
    *handle = pointer_at(id);
    return ACL_SUCCESS;
}

aclError on_aclrtMemGetAllocationPropertiesFromHandle(aclrtDrvMemHandle handle, aclrtPhysicalMemProp* prop) {
    Properties asked;
    if (prop == nullptr || !device::properties_of(state, key_of(handle), &asked))
        return real::aclrtMemGetAllocationPropertiesFromHandle(pointer_at(device::as_passed_on(key_of(handle))), prop);
    *prop = asked.as<aclrtPhysicalMemProp>();
    return ACL_SUCCESS;
}

aclError on_aclrtMemExportToShareableHandle(aclrtDrvMemHandle handle, aclrtMemHandleType handleType, uint64_t flags,
                                            uint64_t* shareableHandle) {
    Held held(state, key_of(handle));
    void* real = pointer_at(held.real());
    return exported(real::aclrtMemExportToShareableHandle(real, handleType, flags, shareableHandle), held.get());
}

aclError on_aclrtMemExportToShareableHandleV2(aclrtDrvMemHandle handle, uint64_t flags,
                                              aclrtMemSharedHandleType shareType, void* shareableHandle) {
    Held held(state, key_of(handle));
    void* real = pointer_at(held.real());
    return exported(real::aclrtMemExportToShareableHandleV2(real, flags, shareType, shareableHandle), held.get());
}

aclError on_aclrtMemImportFromShareableHandle(uint64_t shareableHandle, int32_t deviceId, aclrtDrvMemHandle* handle) {
    aclrtDrvMemHandle made = nullptr;
    aclrtDrvMemHandle* place = handle == nullptr ? nullptr : &made;
    return imported(real::aclrtMemImportFromShareableHandle(shareableHandle, deviceId, place), handle, made);
}

aclError on_aclrtMemImportFromShareableHandleV2(void* shareableHandle, aclrtMemSharedHandleType shareType,
                                                uint64_t flags, aclrtDrvMemHandle* handle) {
    aclrtDrvMemHandle made = nullptr;
    aclrtDrvMemHandle* place = handle == nullptr ? nullptr : &made;
    return imported(real::aclrtMemImportFromShareableHandleV2(shareableHandle, shareType, flags, place), handle, made);
}

}  // namespace acl
}  // namespace gcr
