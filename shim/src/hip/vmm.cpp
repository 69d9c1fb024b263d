// SPDX-License-Identifier: Apache-2.0
//
// The program's own virtual memory management: physical memory behind virtual handles, wherever it maps it.
#include "core/ticket.h"
#include "device/foreign.h"
#include "device/held.h"
#include "device/loans.h"
#include "device/mappings.h"
#include "device/physical.h"
#include "device/reservations.h"
#include "hip/devices.h"
#include "hooks/hip_calls.h"

namespace gcr {
namespace hip {
namespace {

using device::Held;

hipMemGenericAllocationHandle_t as_handle(uint64_t id) {
    return static_cast<hipMemGenericAllocationHandle_t>(pointer_at(id));
}

Reason reason_for(const hipMemAllocationProp& asked) {
    if (asked.location.type != hipMemLocationTypeDevice) return wire::kReasonHostNuma;
    return asked.type == hipMemAllocationTypePinned ? kCovered : wire::kReasonUnexportable;
}

// What only the runtime can make stays the runtime's; the rest can be handed over if it made it exportable.
hipError_t create(size_t size, const hipMemAllocationProp& asked, unsigned long long flags, uint64_t* made,
                  Reason* reason) {
    *reason = reason_for(asked);
    if (*reason != kCovered) return state.ops->create(size, Properties::of(asked), flags, false, made);
    device::Physical physical{};
    hipError_t result = device::create_physical(state, size, Properties::of(asked), flags, &physical);
    if (!physical.exportable) *reason = wire::kReasonUnexportable;
    *made = physical.real;
    return result;
}

void record_access(void* pointer, size_t size, const hipMemAccessDesc& desc) {
    bool may_read = desc.flags != hipMemAccessFlagsProtNone;
    bool may_write = desc.flags == hipMemAccessFlagsProtReadWrite;
    if (desc.location.type == hipMemLocationTypeDevice)
        device::record_access(state, key_of(pointer), size, desc.location.id, may_read, may_write);
    else
        device::uncover_range(state, key_of(pointer), size, wire::kReasonHostNuma);
}

// From now on someone else may hold this memory: it is no longer ours to hand over.
void becomes_exported(Handle* handle) {
    Guard guard(state.lock);
    device::uncover(handle, wire::kReasonShareableExport);
}

Properties properties_of(uint64_t real) {
    hipMemAllocationProp asked{};
    real::hipMemGetAllocationPropertiesFromHandle(&asked, as_handle(real));
    return Properties::of(asked);
}

// A runtime is given the descriptor itself, or, before 7.1, its address.
bool is_ticket(void* given, hipMemAllocationHandleType type, Blob* blob) {
    return type == hipMemHandleTypePosixFileDescriptor && given != nullptr &&
           read_ticket(imports_by_value() ? static_cast<int>(key_of(given)) : *static_cast<int*>(given), blob) &&
           is_blob(*blob, wire::kAmd);
}

// The runtime itself says INVALID_VALUE, so that the thread's last error is that as well.
hipError_t refuse_export() {
    return real::hipMemExportToShareableHandle(nullptr, nullptr, hipMemHandleTypePosixFileDescriptor, 0);
}

hipError_t refuse_import() {
    return real::hipMemImportFromShareableHandle(nullptr, nullptr, hipMemHandleTypePosixFileDescriptor);
}

hipError_t redeem(const Blob& blob, hipMemGenericAllocationHandle_t* out) {
    uint64_t id = 0;
    auto result = static_cast<hipError_t>(device::redeem(state, blob, properties_of, &id));
    if (result == hipErrorInvalidValue) return refuse_import();
    if (result == hipSuccess) *out = as_handle(id);
    return result;
}

}  // namespace

hipError_t on_hipMemAddressReserve(void** ptr, size_t size, size_t alignment, void* addr, unsigned long long flags) {
    hipError_t result = real::hipMemAddressReserve(ptr, size, alignment, addr, flags);
    if (result != hipSuccess || device::record_reservation(state, key_of(*ptr), size)) return result;
    real::hipMemAddressFree(*ptr, size);
    return hipErrorOutOfMemory;
}

hipError_t on_hipMemAddressFree(void* devPtr, size_t size) {
    return device::give_back_recorded(state, key_of(devPtr), size);
}

// Before 5.4 what a program asks lies elsewhere in its struct: passed on as it is, and never handed over.
hipError_t on_hipMemCreate(hipMemGenericAllocationHandle_t* handle, size_t size, const hipMemAllocationProp* prop,
                           unsigned long long flags) {
    if (handle == nullptr || prop == nullptr || !layout_is_known())
        return real::hipMemCreate(handle, size, prop, flags);
    current_owner();
    Reason reason;
    uint64_t made = 0, id = 0;
    hipError_t result = create(size, *prop, flags, &made, &reason);
    if (result == hipSuccess) result = device::give_id(state, made, size, Properties::of(*prop), reason, &id);
    if (result == hipSuccess) *handle = as_handle(id);
    return result;
}

hipError_t on_hipMemRelease(hipMemGenericAllocationHandle_t handle) {
    int result;
    if (device::release_reference(state, key_of(handle), &result)) return result;
    return real::hipMemRelease(as_handle(device::as_passed_on(key_of(handle))));
}

hipError_t on_hipMemMap(void* ptr, size_t size, size_t offset, hipMemGenericAllocationHandle_t handle,
                        unsigned long long flags) {
    Held held(state, key_of(handle));
    hipError_t result = real::hipMemMap(ptr, size, offset, as_handle(held.real()), flags);
    if (result != hipSuccess || held.get() == nullptr) return result;
    return device::record_mapping(state, held.get(), key_of(ptr), size, offset);
}

hipError_t on_hipMemUnmap(void* ptr, size_t size) {
    return device::unmap_range(state, key_of(ptr), size);
}

hipError_t on_hipMemSetAccess(void* ptr, size_t size, const hipMemAccessDesc* desc, size_t count) {
    if (device::touches_internal(state, key_of(ptr), size)) return hipErrorInvalidValue;
    hipError_t result = real::hipMemSetAccess(ptr, size, desc, count);
    for (size_t i = 0; result == hipSuccess && desc != nullptr && i < count; i++) record_access(ptr, size, desc[i]);
    return result;
}

hipError_t on_hipMemRetainAllocationHandle(hipMemGenericAllocationHandle_t* handle, void* addr) {
    uint64_t id = 0;
    if (!device::retain_at(state, key_of(addr), handle == nullptr ? nullptr : &id))
        return real::hipMemRetainAllocationHandle(handle, addr);
    if (id == 0) return hipErrorInvalidValue;
    *handle = as_handle(id);
    return hipSuccess;
}

hipError_t on_hipMemGetAllocationPropertiesFromHandle(hipMemAllocationProp* prop,
                                                      hipMemGenericAllocationHandle_t handle) {
    Properties asked;
    if (prop == nullptr || !device::properties_of(state, key_of(handle), &asked))
        return real::hipMemGetAllocationPropertiesFromHandle(prop, as_handle(device::as_passed_on(key_of(handle))));
    *prop = asked.as<hipMemAllocationProp>();
    return hipSuccess;
}

// ---- shared with others: works as it does bare, and is recorded from the first call on. Tickets are handed over -----

// Ours is exportable whether the program asked for it or not; what it did not ask for stays an error.
hipError_t on_hipMemExportToShareableHandle(void* shareableHandle, hipMemGenericAllocationHandle_t handle,
                                            hipMemAllocationHandleType handleType, unsigned long long flags) {
    Held held(state, key_of(handle));
    Handle* found = held.get();
    bool asked = found == nullptr || (found->asked.as<hipMemAllocationProp>().requestedHandleType & handleType) != 0;
    if (!asked || (found != nullptr && found->foreign != nullptr)) return refuse_export();
    bool as_file = found != nullptr && handleType == hipMemHandleTypePosixFileDescriptor &&
                   shareableHandle != nullptr && flags == 0;
    if (as_file && device::give_ticket(state, held, static_cast<int*>(shareableHandle))) return hipSuccess;
    hipError_t result = real::hipMemExportToShareableHandle(shareableHandle, as_handle(held.real()), handleType, flags);
    if (result == hipSuccess && found != nullptr) becomes_exported(found);
    return result;
}

hipError_t on_hipMemImportFromShareableHandle(hipMemGenericAllocationHandle_t* handle, void* osHandle,
                                              hipMemAllocationHandleType shHandleType) {
    Blob blob;
    if (handle != nullptr && is_ticket(osHandle, shHandleType, &blob)) return redeem(blob, handle);
    hipMemGenericAllocationHandle_t made = nullptr;
    hipError_t result =
        real::hipMemImportFromShareableHandle(handle == nullptr ? nullptr : &made, osHandle, shHandleType);
    if (result != hipSuccess) return result;
    uint64_t id = 0;
    if (!device::give_same_id(state, key_of(made), &id)) {
        hipMemAllocationProp asked{};
        real::hipMemGetAllocationPropertiesFromHandle(&asked, made);
        // only its maker knows its size
        result = device::give_id(state, key_of(made), 0, Properties::of(asked), wire::kReasonShareableImport, &id);
    }
    if (result == hipSuccess) *handle = as_handle(id);
    return result;
}

// A copy with the runtime's handles in it; the caller's list is left as it is.
hipError_t on_hipMemMapArrayAsync(hipArrayMapInfo* mapInfoList, unsigned int count, hipStream_t stream) {
    ScratchArray<hipArrayMapInfo> translated;
    if (mapInfoList == nullptr || count == 0) return real::hipMemMapArrayAsync(mapInfoList, count, stream);
    if (!translated.reserve(count)) return hipErrorOutOfMemory;
    for (unsigned int i = 0; i < count; i++) {
        translated.push(mapInfoList[i]);
        translated[i].memHandle = as_handle(Held(state, key_of(mapInfoList[i].memHandle)).real());
    }
    hipError_t result = real::hipMemMapArrayAsync(translated.data(), count, stream);
    if (result == hipSuccess) add_uncovered(wire::kReasonSparse, 0);
    return result;
}

hipError_t on_hipMemGetHandleForAddressRange(void* handle, void* dptr, size_t size, unsigned int handleType,
                                             unsigned long long flags) {
    hipError_t result = real::hipMemGetHandleForAddressRange(handle, dptr, size, handleType, flags);
    if (result == hipSuccess) add_uncovered(wire::kReasonDmaBuf, size);
    return result;
}

}  // namespace hip
}  // namespace gcr
