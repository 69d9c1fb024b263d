// SPDX-License-Identifier: Apache-2.0
//
// What the shim knows of one vendor's device memory in this process: physical memory by id, mappings by address, what
// the program allocated, and its owners. One State a vendor; a process may use several.
//
// Lock   one lock guards all of it but the ledgers, which have their own. It is never held across a driver call; it
//        comes after the agent's batch lock.
// Order  a thing is recorded after the driver made it and forgotten before the driver takes it back: in between another
//        thread may already be given the same address or handle, and must not find ours. tests/preload/agent races it.
// Ids    virtual handles, never reused, of all vendors: the vendor's number is part of them. Messages name ids, never
//        addresses.
#ifndef GCR_DEVICE_STATE_H
#define GCR_DEVICE_STATE_H

#include <stdint.h>
#include <stdlib.h>

#include <new>

#include "core/array.h"
#include "core/blocks.h"
#include "core/coverage.h"
#include "core/lending.h"
#include "core/lock.h"
#include "core/tree.h"
#include "device/captures.h"
#include "device/ids.h"
#include "device/ledger.h"
#include "device/ops.h"

namespace gcr {
namespace device {

constexpr Reason kCovered = static_cast<Reason>(0);

struct Loan;
struct Mapping;
struct Pool;
struct PoolStream;

// Physical memory. `key` is the id.
struct Handle : TreeNode<Handle> {
    uint64_t real;  // the driver's; meaningless while handed over
    uint64_t size;
    Properties asked;  // as the program asked; what it is told
    int device;
    Reason reason;  // kCovered, or why it is not handed over
    uint32_t retains;  // references the program holds
    uint32_t mapped;  // mappings, and calls about to make one
    Mapping* mappings;
    bool internal;  // behind a plain allocation: the program never sees the id
    bool exported;  // the daemon holds it, since this transaction's EXPORT
    bool released;  // handed over: unmapped, `real` given back
    bool imported;  // came back, with IMPORT or CREATE
    bool kept;  // imported and in use again: others hold it too, since a driver need not export it once more
    bool lent;  // a blob was made of it, ever: the lender may be making a descriptor of it
    Loan* loans;  // to processes that have not returned it; while there is one it lives, as the driver's memory does
    const Blob* foreign;  // null: ours. Else another process's, which this blob names there; freed with the handle
    bool dying;  // being destroyed: no longer exported, no longer found
};

// Of a handle, to one other process; each descriptor that it was given counts.
struct Loan {
    Borrower borrower;
    uint32_t count;
    Loan* next;
};

// Whose allocation this is when another process lent it; process 0: ours alone.
struct Origin {
    uint64_t process;
    uint64_t id;  // there
    bool operator==(const Origin& other) const { return process == other.process && id == other.id; }
};

// A mapped range. `key` is the address.
struct Mapping : TreeNode<Mapping> {
    Handle* handle;
    uint64_t offset;
    uint64_t size;
    uint32_t read;  // bit d: device ordinal d
    uint32_t write;
    Mapping* sibling;  // next mapping of the same handle
    Owner* owner;  // internal ones: whose allocation it serves
    Range range;  // slabs: units of kSlabUnit
    bool slab;
    uint32_t opened;  // of foreign memory: allocations in it that are open here
};

// What a plain allocation returned. `key` is the address.
struct Allocation : TreeNode<Allocation> {
    uint64_t size;  // bytes, as asked
    Mapping* mapping;
    Block* block;  // slabs; null: the whole mapping
    PoolStream* stream;  // pools: the one it was allocated in
    uint64_t id;  // in the order of allocation, never reused
    uint32_t sync_memops;
    Origin origin;
    uint32_t opens;  // of another process's: how often it was opened and not closed
};

// Whose end frees an allocation, and whose peers reach it. CUDA: a context, or a pool; HIP and ACL: a device.
struct Owner {
    int device = 0;
    Blocks slabs;
    uint64_t slab_bytes = 0;
    uint32_t empty_slabs = 0;
    Pool* pool = nullptr;  // itself, where it is one
    uint32_t admitted = 0;  // devices that may use its memory besides; bit d: device d
};

// Addresses that the driver keeps for us or for the program. `key` is the first.
struct Reservation : TreeNode<Reservation> {
    uint64_t size;
    bool lost;  // given up for an instant, and not had again yet
    bool fenced;  // meanwhile no thread is there, and none is let in
};

// What makes released memory leave while its address stays reserved.
enum class Release : uint32_t {
    kUnprobed,
    kPlain,  // unmap and release are enough
    kMapOver,  // and an inaccessible mapping over the range, which drops the last reference
    kReserveAgain,  // and the address given back, and reserved again at once
    kKept,  // nothing of these
};

// Of the program. `key` is the handle.
struct Stream : TreeNode<Stream> {
    uint64_t owner;
    int device;
};

struct Peer {
    Owner* accessor;
    Owner* owner;
};

struct State {
    constexpr explicit State(const DeviceOps& table) : ops(&table), last_id(first_id(table.vendor) - 1) {}

    const DeviceOps* const ops;
    Lock lock;
    Tree<Handle> handles;
    Tree<Mapping> mappings;
    Tree<Allocation> allocations;
    Tree<Stream> streams;
    Tree<Pool> pools;
    Pool* destroyed_pools = nullptr;  // with memory the program has not freed; under settling, both
    std::atomic<bool> pools_to_trim{false};
    std::atomic<uint32_t> segments_leaving{0};  // of pools: in no table any more, and not given back yet
    Captures captures;
    Array<Peer> peers;
    uint32_t peer_changes = 0;
    uint64_t last_id;
    uint64_t last_allocation = 0;
    Array<Allocation*> put_off;  // freed during a capture; given back after it
    std::atomic<bool> any_put_off{false};

    // Across driver calls, before `lock`. No other thread waits for them; a child has them free, since neither thread
    // is there.
    Lock exporting;  // the lender, until a handle has its descriptor; a thread that destroys a lent handle waits
    Lock opening;  // a thread that opens or closes what another process lent
    Lock settling;  // a thread that records or asks the events of pools, or begins a capture

    Ledger carried;  // what the driver keeps for the program and we do not hand over
    Ledger pinned;  // host memory

    static constexpr uint32_t kUnplaced = ~0u;
    struct Device {
        std::atomic<uint32_t> known{0};  // 2: facts may be read
        Facts facts{};
        uint8_t uuid[16] = {};
        uint8_t first_uuid[16] = {};  // when it was learnt
        uint8_t becomes[16] = {};  // where `moved`: its UUID once the transaction is over
        bool moved = false;
        std::atomic<bool> hidden{false};  // now; the process did not see it when it was learnt
    };
    Device devices[kMaxDevices];
    std::atomic<Release> release{Release::kUnprobed};  // the agent's thread writes
    Tree<Reservation> reservations;  // where DeviceOps::used is
    std::atomic<bool> any_lost{false};  // of the reservations
    std::atomic<uint32_t> device_count{0};  // once learnt; release: the uuids are there
    std::atomic<uint32_t> first_ordinal{kUnplaced};  // device 0's number on the wire; the agent's thread writes
};

// ---- allocated with malloc, zeroed; null when host memory is exhausted ---------------------------------------------
template <typename T>
T* make() {
    void* memory = calloc(1, sizeof(T));
    return memory == nullptr ? nullptr : new (memory) T();
}

// ---- under state.lock -------------------------------------------------------------------------------------------
Handle* find_handle(const State& state, uint64_t id);  // alive and known to the program
Mapping* mapping_at(const State& state, uint64_t address);  // the one that contains it
Allocation* allocation_at(const State& state, uint64_t address);  // the one that contains it
void link_mapping(State& state, Mapping* mapping);  // into the tree and its handle
void unlink_mapping(State& state, Mapping* mapping);
Handle* record_handle(State& state, uint64_t real, uint64_t size, const Properties& asked, Reason reason,
                      bool internal);  // a new id, one reference; null: no host memory
void uncover(Handle* handle, Reason reason);  // not ours to hand over, from now on
inline bool is_covered(const Handle& handle) {  // its mappings can be given up and made again
    return handle.reason == kCovered && !handle.dying;
}
inline bool coverable(const Handle& handle) {  // and it is ours to hand over
    return is_covered(handle) && handle.foreign == nullptr;
}
inline bool is_memory_of(const Blob& maker, const Handle& handle) {  // foreign, and what this blob names there
    return handle.foreign != nullptr && handle.foreign->process == maker.process && handle.foreign->id == maker.id;
}
inline bool is_foreign(const Handle& handle) {  // and its owner hands it over
    return is_covered(handle) && handle.foreign != nullptr;
}

// The daemon has numbers for its devices. Before that nothing of it is exported: the hand-over refuses as incomplete.
inline bool is_placed(const State& state) {
    return state.first_ordinal.load(std::memory_order_relaxed) != State::kUnplaced;
}

// ---- fork ---------------------------------------------------------------------------------------------------------
// In the order in which they nest; a thread holds two only as state.lock, then another.
void each_lock(State& state, void (Lock::*act)());
// In the child: what the tables named belongs to the parent. The nodes themselves are left: a few kilobytes, once.
void forget_all_after_fork(State& state);

}  // namespace device
}  // namespace gcr

#endif  // GCR_DEVICE_STATE_H
