// SPDX-License-Identifier: Apache-2.0
//
// Questions about addresses. The runtime sees a mapping of ours where the program made a plain allocation; here the
// program is told what it would be told bare. The runtime answers first, so that every width and every error is its
// own; then the few answers that depend on us are put right.
#include <string.h>

#include "device/pools.h"
#include "hip/devices.h"
#include "hooks/hip_calls.h"

namespace gcr {
namespace hip {
namespace {

// An address without an owner. Room of ours that is not allocated right now must look like that, too.
constexpr uint64_t kNowhere = 512;

// What may be told without the lock.
struct Facts {
    bool ours;
    uint64_t start;
    size_t size;
    int device;
    uint64_t id;
    uint64_t pool;  // 0: not stream-ordered memory
};

Facts facts_at(const void* pointer) {
    Guard guard(state.lock);
    Allocation* allocation = device::allocation_at(state, key_of(pointer));
    if (allocation == nullptr) return {};
    const device::Pool* pool = device::pool_of(*allocation->mapping);
    int device = allocation->mapping->owner->device;
    return {true, allocation->key, allocation->size, device, allocation->id, pool == nullptr ? 0 : pool->key};
}

// What to ask the runtime about.
template <typename Pointer>
Pointer to_ask(Pointer pointer) {
    Guard guard(state.lock);
    Mapping* mapping = device::mapping_at(state, key_of(pointer));
    bool unused =
        mapping != nullptr && mapping->owner != nullptr && device::allocation_at(state, key_of(pointer)) == nullptr;
    return unused ? static_cast<Pointer>(pointer_at(kNowhere)) : pointer;
}

template <typename Value>
void tell(void* data, Value value) {
    memcpy(data, &value, sizeof value);
}

void correct(void* data, hipPointer_attribute attribute, const Facts& facts) {
    switch (attribute) {
        case HIP_POINTER_ATTRIBUTE_BUFFER_ID:
            return tell(data, facts.id);
        case HIP_POINTER_ATTRIBUTE_RANGE_START_ADDR:
            return tell(data, facts.start);
        case HIP_POINTER_ATTRIBUTE_RANGE_SIZE:
            return tell(data, facts.size);
        case HIP_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
            return tell(data, uint64_t{0});
        case HIP_POINTER_ATTRIBUTE_IS_LEGACY_HIP_IPC_CAPABLE:
            return tell(data, uint32_t{facts.pool == 0});
        case HIP_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
            if (facts.pool != 0) tell(data, facts.pool);
            return;
        default:
            return;
    }
}

// A program's own physical memory is exportable for us; the program is told what it asked for.
void correct_as_asked(void* data, hipPointer_attribute attribute, const void* pointer) {
    if (attribute != HIP_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES) return;
    Guard guard(state.lock);
    Mapping* mapping = device::mapping_at(state, key_of(pointer));
    if (mapping == nullptr || mapping->owner != nullptr) return;
    tell(data, static_cast<uint64_t>(mapping->handle->asked.as<hipMemAllocationProp>().requestedHandleType));
}

void correct_answer(void* data, hipPointer_attribute attribute, const void* pointer, const Facts& facts) {
    if (data == nullptr) return;
    if (facts.ours)
        correct(data, attribute, facts);
    else
        correct_as_asked(data, attribute, pointer);
}

// Plain memory is its device's: that peers reach it is not told as access.
bool is_peer_of_plain_memory(const void* pointer, const hipMemLocation& location) {
    Facts facts = facts_at(pointer);
    return facts.ours && facts.pool == 0 && facts.device != location.id;
}

}  // namespace

hipError_t on_hipMemGetAccess(unsigned long long* flags, const hipMemLocation* location, void* ptr) {
    hipError_t result = real::hipMemGetAccess(flags, location, to_ask(ptr));
    if (result == hipSuccess && is_peer_of_plain_memory(ptr, *location)) *flags = hipMemAccessFlagsProtNone;
    return result;
}

hipError_t on_hipMemGetAddressRange(void** pbase, size_t* psize, void* dptr) {
    hipError_t result = real::hipMemGetAddressRange(pbase, psize, to_ask(dptr));
    Facts facts = facts_at(dptr);
    if (result != hipSuccess || !facts.ours) return result;
    if (pbase != nullptr) *pbase = pointer_at(facts.start);
    if (psize != nullptr) *psize = facts.size;
    return hipSuccess;
}

// Of memory of hipMalloc, by its beginning alone.
hipError_t on_hipMemPtrGetInfo(void* ptr, size_t* size) {
    Facts facts = facts_at(ptr);
    if (!facts.ours || size == nullptr) return real::hipMemPtrGetInfo(to_ask(ptr), size);
    if (facts.start != key_of(ptr)) return real::hipMemPtrGetInfo(pointer_at(kNowhere), size);
    *size = facts.size;
    return hipSuccess;
}

hipError_t on_hipPointerGetAttributes(hipPointerAttribute_t* attributes, const void* ptr) {
    return real::hipPointerGetAttributes(attributes, to_ask(ptr));
}

hipError_t on_hipPointerGetAttribute(void* data, hipPointer_attribute attribute, void* ptr) {
    hipError_t result = real::hipPointerGetAttribute(data, attribute, to_ask(ptr));
    if (result == hipSuccess) correct_answer(data, attribute, ptr, facts_at(ptr));
    return result;
}

hipError_t on_hipDrvPointerGetAttributes(unsigned int numAttributes, hipPointer_attribute* attributes, void** data,
                                         void* ptr) {
    hipError_t result = real::hipDrvPointerGetAttributes(numAttributes, attributes, data, to_ask(ptr));
    if (result != hipSuccess) return result;
    Facts facts = facts_at(ptr);
    for (unsigned int i = 0; i < numAttributes; i++) correct_answer(data[i], attributes[i], ptr, facts);
    return result;
}

}  // namespace hip
}  // namespace gcr
