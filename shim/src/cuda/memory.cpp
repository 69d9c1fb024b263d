// SPDX-License-Identifier: Apache-2.0
#include "cuda/memory.h"

#include "cuda/captures.h"
#include "cuda/carried.h"
#include "cuda/contexts.h"
#include "cuda/driver.h"
#include "cuda/regions.h"
#include "hooks/cuda_calls.h"

namespace gcr {
namespace cuda {
namespace {

constexpr uint64_t kUnit = 512;                 // alignment of what cuMemAlloc returns
constexpr uint64_t kLargestSlab = 32ull << 20;
constexpr uint64_t kSlabShare = 32;             // a slab is at most this part of its context's slabs: ≤ 3 % unused

// ---- slabs ------------------------------------------------------------------------------------------------------

uint64_t slab_size(const Context* owner, uint64_t granularity) {
    uint64_t wanted = owner->slab_bytes / kSlabShare;
    if (wanted > kLargestSlab) wanted = kLargestSlab;
    uint64_t least = kSmall > granularity ? kSmall : granularity;
    return round_up(wanted < least ? least : wanted, granularity);
}

bool take_from_slabs(Context* owner, uint64_t size, Allocation* allocation) {
    Guard guard(state.lock);
    Block* block = owner->slabs.take(static_cast<uint32_t>(round_up(size, kUnit) / kUnit));
    if (block == nullptr) return false;
    if (block->range->used == block->size) owner->empty_slabs--;
    Mapping* slab = static_cast<Mapping*>(block->range->owner);
    allocation->key = slab->key + block->start * kUnit;
    allocation->mapping = slab;
    allocation->block = block;
    allocation->id = ++state.last_buffer;
    state.allocations.insert(allocation);
    return true;
}

CUresult add_slab(Context* owner) {
    Mapping* slab = nullptr;
    CUresult result = make_region(owner, slab_size(owner, device_facts(owner->device).granularity), true, &slab);
    if (result != CUDA_SUCCESS) return result;
    {
        Guard guard(state.lock);
        if (owner->slabs.add(&slab->range, static_cast<uint32_t>(slab->size / kUnit))) {
            owner->slab_bytes += slab->size;
            owner->empty_slabs++;
            return CUDA_SUCCESS;
        }
        forget_region(slab);
    }
    give_region(slab);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

// Another thread may take what this one added: a few rounds, then the driver's own allocator serves.
CUresult allocate_small(Context* owner, uint64_t size, Allocation* allocation) {
    for (int attempt = 0; attempt < 16; attempt++) {
        if (take_from_slabs(owner, size, allocation)) return CUDA_SUCCESS;
        CUresult result = add_slab(owner);
        if (result != CUDA_SUCCESS) return result;
    }
    return CUDA_ERROR_OUT_OF_MEMORY;
}

// Under state.lock: takes an empty slab out of use.
void forget_slab(Context* owner, Mapping* slab) {
    owner->slabs.remove(&slab->range);
    owner->slab_bytes -= slab->size;
    owner->empty_slabs--;
    forget_region(slab);
}

// One empty slab is kept, for a program that frees and allocates in turn.
CUresult give_to_slab(const Allocation& allocation) {
    Mapping* slab = allocation.mapping;
    {
        Guard guard(state.lock);
        Context* owner = slab->owner;
        owner->slabs.give(allocation.block);
        if (!slab->range.empty()) return CUDA_SUCCESS;
        owner->empty_slabs++;
        if (owner->empty_slabs <= 1) return CUDA_SUCCESS;
        forget_slab(owner, slab);
    }
    return give_region(slab);
}

// ---- large ------------------------------------------------------------------------------------------------------

CUresult allocate_large(Context* owner, uint64_t size, Allocation* allocation) {
    uint64_t granularity = device_facts(owner->device).granularity;
    if (size > UINT64_MAX - granularity) return CUDA_ERROR_OUT_OF_MEMORY;
    Mapping* region = nullptr;
    CUresult result = make_region(owner, round_up(size, granularity), false, &region);
    if (result != CUDA_SUCCESS) return result;
    Guard guard(state.lock);
    allocation->key = region->key;
    allocation->mapping = region;
    allocation->id = ++state.last_buffer;
    state.allocations.insert(allocation);
    return CUDA_SUCCESS;
}

CUresult give_large(const Allocation& allocation) {
    {
        Guard guard(state.lock);
        forget_region(allocation.mapping);
    }
    return give_region(allocation.mapping);
}

// ---- frees put off ----------------------------------------------------------------------------------------------

// A capture in progress forbids waiting for its context: the memory is quarantined until it ended.
void put_off(Allocation* allocation) {
    Guard guard(state.lock);
    state.put_off.push(allocation);  // no host memory: the memory stays allocated until the context goes
    state.any_put_off.store(true, std::memory_order_relaxed);  // only a hint: the list is looked at under the lock
}

Allocation* next_put_off() {
    Guard guard(state.lock);
    state.any_put_off.store(state.put_off.size() > 1, std::memory_order_relaxed);
    return state.put_off.empty() ? nullptr : state.put_off.pop();
}

bool give_back_put_off() {
    if (captures_in_progress() > 0) return false;
    bool any = false;
    while (Allocation* allocation = next_put_off()) {
        any = true;
        wait_for_context(allocation->mapping->owner);
        free_allocation(allocation);
    }
    return any;
}

Mapping* take_one_empty_slab() {
    Guard guard(state.lock);
    for (Mapping* slab = state.mappings.first(); slab != nullptr; slab = state.mappings.after(slab)) {
        if (!slab->slab || slab->range.first == nullptr || !slab->range.empty()) continue;
        forget_slab(slab->owner, slab);
        return slab;
    }
    return nullptr;
}

// ---- contexts that go ---------------------------------------------------------------------------------------------

void drop_allocation_records(Context* context) {
    for (Allocation* allocation = state.allocations.first(); allocation != nullptr;) {
        Allocation* next = state.allocations.after(allocation);
        if (allocation->mapping->owner == context) {
            state.allocations.erase(allocation);
            free(allocation);
        }
        allocation = next;
    }
    for (size_t i = state.put_off.size(); i-- > 0;) {
        if (state.put_off[i]->mapping->owner != context) continue;
        free(state.put_off[i]);
        state.put_off.swap_out(i);
    }
}

Mapping* take_region_of(Context* context) {
    Guard guard(state.lock);
    for (Mapping* region = state.mappings.first(); region != nullptr; region = state.mappings.after(region)) {
        if (region->owner != context) continue;
        forget_region(region);
        return region;
    }
    return nullptr;
}

Allocation* take_allocation(CUdeviceptr address) {
    Guard guard(state.lock);
    Allocation* allocation = state.allocations.find(address);
    if (allocation != nullptr) state.allocations.erase(allocation);
    return allocation;
}

void take_back(Allocation* allocation) {
    Guard guard(state.lock);
    state.allocations.insert(allocation);
}

// What the driver says of a call that a capture forbids; it also invalidates that capture, as the bare call would.
CUresult refused_by_capture() {
    if (!capture_forbids_allocation()) return CUDA_SUCCESS;
    CUdeviceptr probe = 0;
    CUresult result = real::cuMemAlloc_v2(&probe, kUnit);
    if (result == CUDA_SUCCESS) real::cuMemFree_v2(probe);
    return result;
}

// The driver's own allocator: what it makes, it carries.
CUresult allocate_bare(CUdeviceptr* out, size_t size, Reason reason) {
    CUresult result = real::cuMemAlloc_v2(out, size);
    if (result == CUDA_SUCCESS) carry(*out, size, reason);
    return result;
}

}  // namespace

CUresult allocate(Context* owner, uint64_t size, CUdeviceptr* out) {
    Allocation* allocation = make<Allocation>();
    if (allocation == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
    allocation->size = size;
    CUresult result =
        size <= kSmall ? allocate_small(owner, size, allocation) : allocate_large(owner, size, allocation);
    if (result == CUDA_SUCCESS)
        *out = allocation->key;
    else
        free(allocation);
    return result;
}

CUresult free_allocation(Allocation* allocation) {
    CUresult result = allocation->block != nullptr ? give_to_slab(*allocation) : give_large(*allocation);
    free(allocation);
    return result;
}

bool give_back_spares() {
    bool any = give_back_put_off();
    while (Mapping* slab = take_one_empty_slab()) {
        any = true;
        give_region(slab);
    }
    return any;
}

void free_all_of(Context* context) {
    {
        Guard guard(state.lock);
        drop_allocation_records(context);
    }
    while (Mapping* region = take_region_of(context)) give_region(region);
}

CUresult wait_for_context(Context* context) {
    CUcontext current = nullptr;
    real::cuCtxGetCurrent(&current);
    if (current == context->handle) return real::cuCtxSynchronize();
    CurrentContext scope(context->handle);
    return real::cuCtxSynchronize();
}

uint32_t accessors_of(const Context* owner) {
    uint32_t devices = device_bit(owner->device);
    for (const Peer& peer : state.peers)
        if (peer.owner == owner) devices |= device_bit(peer.accessor->device);
    return devices;
}

// A region that another thread frees meanwhile just fails here; its successor reads the peers itself.
void apply_access(Context* owner) {
    for (CUdeviceptr at = 0;;) {
        uint64_t size;
        uint32_t wanted, before;
        {
            Guard guard(state.lock);
            Mapping* region = state.mappings.at_least(at);
            while (region != nullptr && region->owner != owner) region = state.mappings.after(region);
            if (region == nullptr) return;
            wanted = accessors_of(owner);
            before = region->read;
            region->read = region->write = wanted;
            at = region->key;
            size = region->size;
        }
        set_access(at, size, wanted & ~before, wanted & ~before);
        drop_access(at, size, before & ~wanted);
        at += size;
    }
}

// ---- the program's calls --------------------------------------------------------------------------------------------

CUresult on_cuMemAlloc_v2(CUdeviceptr* dptr, size_t bytesize) {
    Context* owner = dptr == nullptr || bytesize == 0 ? nullptr : current_context();
    if (owner == nullptr) return real::cuMemAlloc_v2(dptr, bytesize);  // the driver's own error
    if (capture_forbids_allocation()) return allocate_bare(dptr, bytesize, wire::kReasonCapture);
    if (state.any_put_off.load(std::memory_order_relaxed)) give_back_put_off();
    if (device_facts(owner->device).vmm) {
        CUresult result = allocate(owner, bytesize, dptr);
        if (result == CUDA_SUCCESS) return result;
    }
    // never out of memory because of us: the driver may still find room (its pools, a slab of its own)
    return allocate_bare(dptr, bytesize, wire::kReasonUnexportable);
}

CUresult on_cuMemFree_v2(CUdeviceptr dptr) {
    // forgotten before anything is given back: another thread may be given this address as soon as the driver has it
    Allocation* allocation = dptr == 0 ? nullptr : take_allocation(dptr);
    if (allocation == nullptr) return free_carried(dptr, [](CUdeviceptr p) { return real::cuMemFree_v2(p); });
    if (captures_in_progress() > 0) {
        CUresult refused = refused_by_capture();
        if (refused == CUDA_SUCCESS)
            put_off(allocation);
        else
            take_back(allocation);
        return refused;
    }
    CUresult waited = wait_for_context(allocation->mapping->owner);
    if (waited == CUDA_SUCCESS) return free_allocation(allocation);
    take_back(allocation);
    return waited;
}

CUresult on_cuMemAllocPitch_v2(CUdeviceptr* dptr, size_t* pPitch, size_t WidthInBytes, size_t Height,
                               unsigned int ElementSizeBytes) {
    Context* owner = dptr == nullptr || pPitch == nullptr ? nullptr : current_context();
    bool plain = WidthInBytes > 0 && Height > 0 && !capture_forbids_allocation() &&
                 (ElementSizeBytes == 4 || ElementSizeBytes == 8 || ElementSizeBytes == 16);
    size_t pitch = owner != nullptr && plain ? pitch_of(WidthInBytes, ElementSizeBytes) : 0;
    if (pitch != 0 && Height <= SIZE_MAX / pitch && device_facts(owner->device).vmm &&
        allocate(owner, pitch * Height, dptr) == CUDA_SUCCESS) {
        *pPitch = pitch;
        return CUDA_SUCCESS;
    }
    CUresult result = real::cuMemAllocPitch_v2(dptr, pPitch, WidthInBytes, Height, ElementSizeBytes);
    if (result == CUDA_SUCCESS) carry(*dptr, *pPitch * Height, wire::kReasonUnexportable);
    return result;
}

}  // namespace cuda
}  // namespace gcr
