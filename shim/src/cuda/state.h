// SPDX-License-Identifier: Apache-2.0
//
// What the CUDA half of the shim knows of this process: physical memory by id, mappings by address, what the program
// allocated, its contexts and streams.
//
// Lock   one lock guards all of it. It is never held across a driver call; it comes after the agent's batch lock.
// Order  a thing is recorded after the driver made it and forgotten before the driver takes it back: in between another
//        thread may already be given the same address or handle, and must not find ours. tests/preload/agent races it.
// Ids    virtual handles, never reused. Messages name ids, never addresses.
#ifndef GCR_CUDA_STATE_H
#define GCR_CUDA_STATE_H

#include <stdint.h>

#include <stdlib.h>

#include <new>

#include "abi/cuda.h"
#include "core/array.h"
#include "core/blocks.h"
#include "core/coverage.h"
#include "core/lock.h"
#include "core/tree.h"
#include "core/vendor.h"

namespace gcr {
namespace cuda {

using namespace cuda_abi;

constexpr int kMaxDevices = 32;  // the wire's access masks have 32 bits
constexpr uint64_t kFirstId = 0x6763720000000001ull;  // no driver handle and no canonical address looks so
constexpr Reason kCovered = static_cast<Reason>(0);

struct Mapping;
struct Context;

// Physical memory. `key` is the id.
struct Handle : TreeNode<Handle> {
    CUmemGenericAllocationHandle real;  // the driver's; meaningless while handed over
    uint64_t size;
    CUmemAllocationProp asked;  // as the program asked; what it is told
    Reason reason;  // kCovered, or why it is not handed over
    uint32_t retains;  // references the program holds
    uint32_t mapped;  // mappings, and calls about to make one
    Mapping* mappings;
    bool internal;  // behind cuMemAlloc: the program never sees the id
    bool exported;  // the daemon holds it, since this transaction's EXPORT
    bool released;  // handed over: unmapped, `real` given back
    bool imported;  // came back with IMPORT
    bool kept;  // imported and in use again: others hold it too, since r580 exports it no more
    bool dying;  // being destroyed: no longer exported, no longer found
};

// A mapped range. `key` is the address.
struct Mapping : TreeNode<Mapping> {
    Handle* handle;
    uint64_t offset;
    uint64_t size;
    uint32_t read;  // bit d: device ordinal d
    uint32_t write;
    Mapping* sibling;  // next mapping of the same handle
    Context* owner;  // internal ones: whose cuMemAlloc it serves
    Range range;  // slabs: 512-byte units
    bool slab;
};

// What cuMemAlloc returned. `key` is the address.
struct Allocation : TreeNode<Allocation> {
    uint64_t size;  // bytes, as asked
    Mapping* mapping;
    Block* block;  // slabs; null: the whole mapping
    uint64_t id;  // CU_POINTER_ATTRIBUTE_BUFFER_ID
    uint32_t sync_memops;
};

struct Context {
    CUcontext handle;
    CUdevice device;
    std::atomic<uint32_t> pins{0};  // our own threads working with it; it is not destroyed meanwhile
    uint32_t retains = 0;  // primary: cuDevicePrimaryCtxRetain of the program not yet released
    Blocks slabs;
    uint64_t slab_bytes = 0;
    uint32_t empty_slabs = 0;
};

struct Stream : TreeNode<Stream> {
    CUcontext context;
    CUdevice device;
};

struct Peer {
    Context* accessor;
    Context* owner;
};

struct State {
    Lock lock;
    Tree<Handle> handles;
    Tree<Mapping> mappings;
    Tree<Allocation> allocations;
    Tree<Stream> streams;
    Array<Context*> contexts;
    Array<Peer> peers;
    uint32_t peer_changes = 0;
    uint64_t last_id = kFirstId - 1;
    uint64_t last_buffer = 0;
    uint64_t exported = 0;  // handles, this transaction
    Array<Allocation*> put_off;  // freed during a capture; given back after it
    std::atomic<bool> any_put_off{false};
};

extern State state;

// ---- allocated with malloc, zeroed; null when host memory is exhausted ---------------------------------------------
template <typename T>
T* make() {
    void* memory = calloc(1, sizeof(T));
    return memory == nullptr ? nullptr : new (memory) T();
}

// ---- under state.lock -------------------------------------------------------------------------------------------
Handle* find_handle(uint64_t id);  // alive and known to the program
Mapping* mapping_at(CUdeviceptr address);  // the one that contains it
Allocation* allocation_at(CUdeviceptr address);  // the one that contains it
void link_mapping(Mapping* mapping);  // into the tree and its handle
void unlink_mapping(Mapping* mapping);
Handle* record_handle(CUmemGenericAllocationHandle real, uint64_t size, const CUmemAllocationProp& asked, Reason reason,
                      bool internal);  // a new id, one reference; null: no host memory
bool coverable(const Handle& handle);  // can be handed over

}  // namespace cuda
}  // namespace gcr

#endif  // GCR_CUDA_STATE_H
