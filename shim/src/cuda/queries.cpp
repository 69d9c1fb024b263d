// SPDX-License-Identifier: Apache-2.0
//
// Questions about addresses. The driver sees a mapping of ours where the program made a plain allocation; here the
// program is told what it would be told bare. The driver answers first, so that every width and every error is its
// own; then the few answers that depend on us are put right.
#include <string.h>

#include "cuda/driver.h"
#include "hooks/cuda_calls.h"

namespace gcr {
namespace cuda {
namespace {

// An address that is nobody's. Room of ours that is not allocated right now must look like that, too.
constexpr CUdeviceptr kNowhere = 512;

// What may be told without the lock.
struct Facts {
    bool ours = false;
    CUdeviceptr start = 0;
    size_t size = 0;
    CUcontext context = nullptr;
    uint64_t id = 0;
    uint32_t sync_memops = 0;
};

Facts facts_at(CUdeviceptr address) {
    Guard guard(state.lock);
    Allocation* allocation = allocation_at(address);
    if (allocation == nullptr) return {};
    return {true,           allocation->key,        allocation->size, allocation->mapping->owner->handle,
            allocation->id, allocation->sync_memops};
}

// What to ask the driver about.
CUdeviceptr address_to_ask(CUdeviceptr address) {
    Guard guard(state.lock);
    Mapping* mapping = mapping_at(address);
    bool unused = mapping != nullptr && mapping->owner != nullptr && allocation_at(address) == nullptr;
    return unused ? kNowhere : address;
}

template <typename Value>
bool tell(void* data, Value value) {
    memcpy(data, &value, sizeof value);
    return true;
}

// True: answered. Flags are written by the driver in its own width; only their low part is ours.
bool correct(void* data, CUpointer_attribute attribute, const Facts& facts) {
    switch (attribute) {
        case CU_POINTER_ATTRIBUTE_CONTEXT:
            return tell(data, facts.context);
        case CU_POINTER_ATTRIBUTE_BUFFER_ID:
            return tell(data, static_cast<unsigned long long>(facts.id));
        case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
            return tell(data, facts.start);
        case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
            return tell(data, facts.size);
        case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
            return tell(data, uint32_t{0});
        case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
            return tell(data, uint8_t{1});
        case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
            return tell(data, static_cast<uint8_t>(facts.sync_memops));
        default:
            return false;
    }
}

// A program's own physical memory is exportable and RDMA-capable for us; the program is told what it asked for.
bool correct_as_asked(void* data, CUpointer_attribute attribute, CUdeviceptr address) {
    Guard guard(state.lock);
    Mapping* mapping = mapping_at(address);
    if (mapping == nullptr || mapping->owner != nullptr) return false;
    const CUmemAllocationProp& asked = mapping->handle->asked;
    if (attribute == CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES)
        return tell(data, static_cast<uint32_t>(asked.requestedHandleTypes));
    if (attribute == CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE)
        return tell(data, static_cast<uint8_t>(asked.allocFlags.gpuDirectRDMACapable));
    return false;
}

void correct_answer(void* data, CUpointer_attribute attribute, CUdeviceptr address, const Facts& facts) {
    if (data == nullptr) return;
    if (facts.ours)
        correct(data, attribute, facts);
    else
        correct_as_asked(data, attribute, address);
}

bool only_ours_to_tell(CUpointer_attribute attribute) {
    return attribute != CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE &&
           attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS;
}

// Plain memory is its owner's: that peers reach it is not told as access.
bool is_peer_of_plain_memory(CUdeviceptr address, const CUmemLocation& location) {
    Guard guard(state.lock);
    Allocation* allocation = allocation_at(address);
    return allocation != nullptr && allocation->mapping->owner->device != location.id;
}

}  // namespace

CUresult on_cuMemGetAccess(unsigned long long* flags, const CUmemLocation* location, CUdeviceptr ptr) {
    CUresult result = real::cuMemGetAccess(flags, location, address_to_ask(ptr));
    if (result == CUDA_SUCCESS && is_peer_of_plain_memory(ptr, *location)) *flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return result;
}

CUresult on_cuMemGetAddressRange_v2(CUdeviceptr* pbase, size_t* psize, CUdeviceptr dptr) {
    CUresult result = real::cuMemGetAddressRange_v2(pbase, psize, address_to_ask(dptr));
    Facts facts = facts_at(dptr);
    if (result != CUDA_SUCCESS || !facts.ours) return result;
    if (pbase != nullptr) *pbase = facts.start;
    if (psize != nullptr) *psize = facts.size;
    return CUDA_SUCCESS;
}

CUresult on_cuPointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr ptr) {
    CUresult result = real::cuPointerGetAttribute(data, attribute, address_to_ask(ptr));
    Facts facts = facts_at(ptr);
    if (result == CUDA_SUCCESS) {
        correct_answer(data, attribute, ptr, facts);
    } else if (facts.ours && data != nullptr && only_ours_to_tell(attribute) && correct(data, attribute, facts)) {
        return CUDA_SUCCESS;  // a question the driver does not answer for mapped memory
    }
    return result;
}

CUresult on_cuPointerGetAttributes(unsigned int numAttributes, CUpointer_attribute* attributes, void** data,
                                   CUdeviceptr ptr) {
    CUresult result = real::cuPointerGetAttributes(numAttributes, attributes, data, address_to_ask(ptr));
    if (result != CUDA_SUCCESS) return result;
    Facts facts = facts_at(ptr);
    for (unsigned int i = 0; i < numAttributes; i++) correct_answer(data[i], attributes[i], ptr, facts);
    return result;
}

// Slabs hold many allocations: what is set for one of them is remembered for it.
CUresult on_cuPointerSetAttribute(const void* value, CUpointer_attribute attribute, CUdeviceptr ptr) {
    CUresult result = real::cuPointerSetAttribute(value, attribute, address_to_ask(ptr));
    if (attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS || value == nullptr) return result;
    Guard guard(state.lock);
    Allocation* allocation = allocation_at(ptr);
    if (allocation == nullptr || allocation->key != ptr) return result;
    allocation->sync_memops = *static_cast<const unsigned char*>(value) != 0;
    return CUDA_SUCCESS;
}

}  // namespace cuda
}  // namespace gcr
