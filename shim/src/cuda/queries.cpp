// SPDX-License-Identifier: Apache-2.0
//
// Questions about addresses. The driver sees a mapping of ours where the program made a plain allocation; here the
// program is told what it would be told bare. The driver answers first, so that every width and every error is its
// own; then the few answers that depend on us are put right.
#include <string.h>

#include "cuda/driver.h"
#include "device/pools.h"
#include "device/state.h"
#include "hooks/cuda_calls.h"

namespace gcr {
namespace cuda {
namespace {

// An address without an owner. Room of ours that is not allocated right now must look like that, too.
constexpr CUdeviceptr kNowhere = 512;

// What may be told without the lock. A launch may ask of every pointer it passes: one look at the tables a question.
struct Facts {
    CUdeviceptr ask = 0;  // what to ask the driver about
    bool plain = false;   // an allocation; then the six below
    CUdeviceptr start = 0;
    size_t size = 0;
    CUcontext context = nullptr;
    uint64_t pool = 0;  // and no context, where it is stream-ordered memory
    uint64_t id = 0;
    uint32_t sync_memops = 0;
    bool programs_own = false;  // the program's own physical memory; then what it asked for
    uint32_t handle_types = 0;
    uint8_t rdma_capable = 0;
};

void add_plain(const Allocation& allocation, Facts* facts) {
    facts->plain = true;
    facts->start = allocation.key;
    facts->size = allocation.size;
    if (const device::Pool* pool = device::pool_of(*allocation.mapping))
        facts->pool = pool->key;
    else
        facts->context = context_of(allocation)->handle;
    facts->id = allocation.id;
    facts->sync_memops = allocation.sync_memops;
}

void add_as_asked(const Handle& handle, Facts* facts) {
    auto asked = handle.asked.as<CUmemAllocationProp>();
    facts->programs_own = true;
    facts->handle_types = static_cast<uint32_t>(asked.requestedHandleTypes);
    facts->rdma_capable = static_cast<uint8_t>(asked.allocFlags.gpuDirectRDMACapable);
}

Facts facts_at(CUdeviceptr address) {
    Facts facts;
    facts.ask = address;
    Guard guard(state.lock);
    Mapping* mapping = device::mapping_at(state, address);
    if (mapping == nullptr) return facts;
    if (mapping->owner == nullptr) {
        add_as_asked(*mapping->handle, &facts);
        return facts;
    }
    Allocation* allocation = device::allocation_at(state, address);
    if (allocation != nullptr)
        add_plain(*allocation, &facts);
    else
        facts.ask = kNowhere;
    return facts;
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
            return tell(data, uint8_t{facts.pool == 0});
        case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
            return facts.pool != 0 && tell(data, facts.pool);
        case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
            return facts.pool != 0 && tell(data, uint8_t{0});
        case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
            return tell(data, static_cast<uint8_t>(facts.sync_memops));
        default:
            return false;
    }
}

// A program's own physical memory is exportable and RDMA-capable for us; the program is told what it asked for.
bool correct_as_asked(void* data, CUpointer_attribute attribute, const Facts& facts) {
    if (attribute == CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES) return tell(data, facts.handle_types);
    if (attribute == CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE) return tell(data, facts.rdma_capable);
    return false;
}

void correct_answer(void* data, CUpointer_attribute attribute, const Facts& facts) {
    if (data == nullptr) return;
    if (facts.plain) correct(data, attribute, facts);
    if (facts.programs_own) correct_as_asked(data, attribute, facts);
}

bool only_ours_to_tell(CUpointer_attribute attribute) {
    return attribute != CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE &&
           attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS;
}

// Plain memory is its owner's: that peers reach it is not told as access.
bool is_peer_of_plain_memory(CUdeviceptr address, const CUmemLocation& location) {
    Guard guard(state.lock);
    Allocation* allocation = device::allocation_at(state, address);
    return allocation != nullptr && device::pool_of(*allocation->mapping) == nullptr &&
           allocation->mapping->owner->device != location.id;
}

}  // namespace

CUresult on_cuMemGetAccess(unsigned long long* flags, const CUmemLocation* location, CUdeviceptr ptr) {
    CUresult result = real::cuMemGetAccess(flags, location, facts_at(ptr).ask);
    if (result == CUDA_SUCCESS && is_peer_of_plain_memory(ptr, *location)) *flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return result;
}

CUresult on_cuMemGetAddressRange_v2(CUdeviceptr* pbase, size_t* psize, CUdeviceptr dptr) {
    Facts facts = facts_at(dptr);
    CUresult result = real::cuMemGetAddressRange_v2(pbase, psize, facts.ask);
    if (result != CUDA_SUCCESS || !facts.plain) return result;
    if (pbase != nullptr) *pbase = facts.start;
    if (psize != nullptr) *psize = facts.size;
    return CUDA_SUCCESS;
}

CUresult on_cuPointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr ptr) {
    Facts facts = facts_at(ptr);
    CUresult result = real::cuPointerGetAttribute(data, attribute, facts.ask);
    if (result == CUDA_SUCCESS) {
        correct_answer(data, attribute, facts);
    } else if (facts.plain && data != nullptr && only_ours_to_tell(attribute) && correct(data, attribute, facts)) {
        return CUDA_SUCCESS;  // a question the driver does not answer for mapped memory
    }
    return result;
}

CUresult on_cuPointerGetAttributes(unsigned int numAttributes, CUpointer_attribute* attributes, void** data,
                                   CUdeviceptr ptr) {
    Facts facts = facts_at(ptr);
    CUresult result = real::cuPointerGetAttributes(numAttributes, attributes, data, facts.ask);
    if (result != CUDA_SUCCESS) return result;
    for (unsigned int i = 0; i < numAttributes; i++) correct_answer(data[i], attributes[i], facts);
    return result;
}

// Slabs hold many allocations: what is set for one of them is remembered for it.
CUresult on_cuPointerSetAttribute(const void* value, CUpointer_attribute attribute, CUdeviceptr ptr) {
    CUresult result = real::cuPointerSetAttribute(value, attribute, facts_at(ptr).ask);
    if (attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS || value == nullptr) return result;
    Guard guard(state.lock);
    Allocation* allocation = device::allocation_at(state, ptr);
    if (allocation == nullptr || allocation->key != ptr) return result;
    allocation->sync_memops = *static_cast<const unsigned char*>(value) != 0;
    return CUDA_SUCCESS;
}

}  // namespace cuda
}  // namespace gcr
