// SPDX-License-Identifier: Apache-2.0
//
// Vendors: those whose libraries this process uses. One agent and one gate serve them all; what the daemon asks is asked
// of each, in the order of their numbers, which is that of their ids.
//
// Ordinals  the daemon sees one row of devices a process: a vendor's begin where those of the vendor that was learnt
//           before it end. Within src/device and below, ordinals are the vendor's own.
// Threads   add: any. The rest: the agent's thread, but for synchronize and stuck (helper threads) and fork.
#ifndef GCR_CORE_VENDORS_H
#define GCR_CORE_VENDORS_H

#include <atomic>

#include "core/lending.h"
#include "core/vendor.h"

namespace gcr {

class Vendors {
  public:
    bool add(const VendorOps* vendor);  // again and again: once; true: it is new
    uint32_t first() const { return first_.load(std::memory_order_acquire); }  // wire::Vendor: the one added first

    const VendorOps* whose(uint64_t id) const;  // null: no vendor's

    void enter_thread() const;  // every vendor's driver, with the calling thread
    void enter_new();  // those added since the last time; by the agent's thread, which also learns their devices

    bool simulated() const;
    bool releases_by(device::Release way) const;  // some vendor's memory leaves so
    bool exports() const;  // every device's memory can leave as descriptors
    uint32_t captures() const;
    bool gone(int32_t error) const;  // `error` is what a driver that has shut down answers, and one has
    void status(wire::StatusRecord* status, Array<wire::DeviceRecord>* devices) const;

    // Failed with nothing in the batch; a failure after some of it is met again by the next request.
    Failure export_after(uint64_t after_id, ExportBatch* batch) const;
    void mappings_after(uint64_t cursor, MappingPage* page) const;
    Failure synchronize() const;
    uint32_t stuck(wire::StuckRecord* records, uint32_t limit) const;
    Failure hand_over(Tally* tally) const;  // of all vendors, or of none
    // Takes the descriptors: each is closed, whatever happens. All of them, or none.
    Failure import(const uint64_t* ids, const int* descriptors, uint32_t count, Tally* tally) const;
    Failure create(const uint64_t* ids, uint32_t count, Tally* tally) const;  // all of them, or none
    Failure rehome(const uint64_t* ids, uint32_t count, Tally* tally) const;  // in order, until one fails
    Failure copy(Direction direction, uint64_t id, uint64_t offset, void* host, uint64_t size) const;
    Failure map(Tally* tally) const;
    Failure discard(Tally* tally) const;
    // See lending.h. By the lender's thread, under no lock.
    bool lend(const Blob& blob, const Borrower& borrower, Lent* lent, int* descriptor) const;
    void take_back_loan(const Blob& blob, const Borrower& borrower) const;
    void forget_dead_borrowers() const;
    void list_shared(uint64_t after, SharedPage* page) const;
    Failure snapshot(wire::SnapshotStep step) const;  // of the vendors that have such a thing; none has: kRefused
    wire::SnapshotPhase snapshot_phase() const;  // of the first that has
    bool all_away() const;  // of what was handed over nothing has come back; makes no driver call
    void cover_addresses(int file) const;  // of what was handed over (release.h); makes no driver call
    bool all_addresses() const;  // none was lost at a hand-over; makes no driver call
    bool regain_addresses()
        const;  // asks for those, and maps what is in this process there; true: none is lost any more
    // MovedRecords, `stride` bytes apart, instead of those told before; for when the transaction ends.
    void move_devices(const uint8_t* moves, uint32_t count, uint32_t stride) const;
    void end_transaction() const;  // nothing is exported any more, moves are done; makes no driver call

    void lock_for_fork();
    void unlock_after_fork();
    void reset_after_fork();  // in the child: none, until its own first call

  private:
    static constexpr uint32_t kLimit = wire::kThirdParty + 1;

    template <typename Visit>
    void each(Visit visit) const {
        for (const auto& place : vendors_)
            if (const VendorOps* vendor = place.load(std::memory_order_acquire)) visit(*vendor);
    }
    template <typename Visit>  // until one fails
    Failure each_until(Visit visit) const {
        Failure failure;
        each([&](const VendorOps& vendor) {
            if (!failure) failure = visit(vendor);
        });
        return failure;
    }
    const VendorOps* numbered(uint32_t vendor) const;  // null: not there
    void each_lock(void (Lock::*act)());
    bool place(device::State& memory);  // false: not yet, or no numbers left

    std::atomic<const VendorOps*> vendors_[kLimit] = {};  // by wire::Vendor; release by add(), acquire by each()
    std::atomic<uint32_t> first_{wire::kVendorNone};
    std::atomic<uint32_t> count_{0};
    uint32_t entered_ = 0;  // of `count_`; the agent's thread alone
    uint32_t next_ordinal_ = 0;
    Lock adding_;  // a fork finds the vendors it locked
};

}  // namespace gcr

#endif  // GCR_CORE_VENDORS_H
