// SPDX-License-Identifier: Apache-2.0
#include "core/vendors.h"

#include <unistd.h>

#include "device/copyout.h"
#include "device/devices.h"
#include "device/handover.h"
#include "device/loans.h"
#include "device/rehome.h"
#include "device/release.h"
#include "device/reservations.h"
#include "device/shared.h"
#include "device/status.h"

namespace gcr {
namespace {

// A cursor over the mappings of all vendors: no address of a user's half has these bits.
constexpr int kCursorShift = 56;
constexpr uint64_t kCursorAddress = (1ull << kCursorShift) - 1;

uint64_t cursor_at(uint32_t vendor, uint64_t address) {
    return static_cast<uint64_t>(vendor) << kCursorShift | address;
}

uint32_t number_of(const VendorOps& vendor) {
    return vendor.memory->ops->vendor;
}

// How many ids from the first one on belong to the same vendor as it.
uint32_t of_one_vendor(const uint64_t* ids, uint32_t count) {
    uint32_t same = 1;
    while (same < count && device::vendor_of(ids[same]) == device::vendor_of(ids[0])) same++;
    return same;
}

void discard_of(const Vendors& vendors, const uint64_t* ids, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) device::discard_handles(*vendors.whose(ids[i])->memory, ids + i, 1);
}

void close_all(const int* descriptors, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) close_descriptor(descriptors[i]);
}

}  // namespace

// ---- vendors that are there -------------------------------------------------------------------------------------

bool Vendors::add(const VendorOps* vendor) {
    uint32_t number = number_of(*vendor);
    if (number >= kLimit || vendors_[number].load(std::memory_order_acquire) != nullptr) return false;
    Guard guard(adding_);
    if (vendors_[number].load(std::memory_order_relaxed) != nullptr) return false;
    vendors_[number].store(vendor, std::memory_order_release);
    if (first() == wire::kVendorNone) first_.store(number, std::memory_order_release);
    count_.fetch_add(1, std::memory_order_release);
    return true;
}

void Vendors::enter_thread() const {
    each([](const VendorOps& vendor) { vendor.enter_thread(); });
}

const VendorOps* Vendors::whose(uint64_t id) const {
    return numbered(device::vendor_of(id));
}

void Vendors::enter_new() {
    uint32_t count = count_.load(std::memory_order_acquire);
    if (count == entered_) return;
    bool placed = true;
    each([&](const VendorOps& vendor) {
        vendor.enter_thread();
        device::learn_devices(*vendor.memory);
        placed = place(*vendor.memory) && placed;
    });
    entered_ = placed ? count : 0;  // a driver that did not tell its devices is asked again
}

bool Vendors::place(device::State& memory) {
    if (device::is_placed(memory)) return true;
    uint32_t devices = memory.device_count.load(std::memory_order_acquire);
    if (devices == 0 || next_ordinal_ + devices > device::kMaxDevices) return false;
    memory.first_ordinal.store(next_ordinal_, std::memory_order_relaxed);
    next_ordinal_ += devices;
    return true;
}

bool Vendors::simulated() const {
    bool any = false;
    each([&](const VendorOps& vendor) { any = any || vendor.simulated(); });
    return any;
}

bool Vendors::releases_by(device::Release way) const {
    bool any = false;
    each([&](const VendorOps& vendor) { any = any || vendor.memory->release.load(std::memory_order_relaxed) == way; });
    return any;
}

bool Vendors::exports() const {
    bool all = true;
    each([&](const VendorOps& vendor) { all = all && device::all_export(*vendor.memory); });
    return all;
}

uint32_t Vendors::captures() const {
    uint32_t sum = 0;
    each([&](const VendorOps& vendor) { sum += vendor.memory->ops->captures(); });
    return sum;
}

bool Vendors::gone(int32_t error) const {
    bool any = false;
    each([&](const VendorOps& vendor) { any = any || (vendor.gone != nullptr && vendor.gone(error)); });
    return any;
}

void Vendors::status(wire::StatusRecord* status, Array<wire::DeviceRecord>* devices) const {
    each([&](const VendorOps& vendor) {
        device::add_status(*vendor.memory, status, devices);
        status->contexts += vendor.contexts();
    });
}

// ---- there ------------------------------------------------------------------------------------------------------

// Ids sort by vendor: those that come before `after_id` have nothing to add.
Failure Vendors::export_after(uint64_t after_id, ExportBatch* batch) const {
    batch->count = batch->descriptor_count = batch->more = 0;
    Failure failure = each_until([&](const VendorOps& vendor) {
        return batch->more != 0 ? Failure{} : device::export_after(*vendor.memory, after_id, batch);
    });
    batch->last_id = batch->count == 0 ? after_id : batch->records[batch->count - 1].id;
    if (!failure) return {};
    batch->more = 1;  // what left is sent; the next request meets the same failure first
    return batch->count == 0 ? failure : Failure{};
}

void Vendors::mappings_after(uint64_t cursor, MappingPage* page) const {
    page->count = page->more = 0;
    page->cursor = cursor;
    each([&](const VendorOps& vendor) {
        uint32_t number = number_of(vendor);
        if (page->more != 0 || cursor >> kCursorShift > number) return;
        bool begun = cursor >> kCursorShift == number;
        uint32_t before = page->count;
        device::mappings_after(*vendor.memory, begun ? (cursor & kCursorAddress) + 1 : 0, page);
        if (page->count > before) page->cursor = cursor_at(number, page->records[page->count - 1].address);
    });
}

Failure Vendors::synchronize() const {
    return each_until([](const VendorOps& vendor) { return vendor.synchronize(); });
}

uint32_t Vendors::stuck(wire::StuckRecord* records, uint32_t limit) const {
    uint32_t count = 0;
    each([&](const VendorOps& vendor) {
        uint32_t found = vendor.stuck(records + count, limit - count);
        uint32_t first = device::is_placed(*vendor.memory) ? vendor.memory->first_ordinal.load() : 0;
        for (uint32_t i = 0; i < found; i++) records[count++].device += first;
    });
    return count;
}

// Nothing is released before everything is unmapped: so far one vendor's refusal can be undone for all.
Failure Vendors::hand_over(Tally* tally) const {
    bool complete = true;
    each([&](const VendorOps& vendor) {
        device::choose_foreign(*vendor.memory);
        complete = complete && device::all_exported(*vendor.memory);
    });
    // exportable memory that stays behind would make the driver's checkpoint impossible to restore (r580)
    if (!complete) return {wire::kIncomplete, 0, "handles were allocated since the last export"};
    Failure failure = each_until([](const VendorOps& vendor) { return device::can_leave(*vendor.memory); });
    if (failure) return failure;
    uint32_t unmapped = 0;
    failure = each_until([&](const VendorOps& vendor) {
        Failure refused = device::unmap_exported(*vendor.memory);
        if (!refused) unmapped |= 1u << number_of(vendor);
        return refused;
    });
    if (!failure)
        failure = each_until([](const VendorOps& vendor) { return device::give_up_addresses(*vendor.memory); });
    each([&](const VendorOps& vendor) {
        if (!failure) device::release_exported(*vendor.memory, tally);
        if (!failure || (unmapped & 1u << number_of(vendor)) == 0) return;
        Failure lost = device::remap_exported(*vendor.memory);
        if (lost) failure = lost;
    });
    return failure;
}

// ---- and back ---------------------------------------------------------------------------------------------------

Failure Vendors::import(const uint64_t* ids, const int* descriptors, uint32_t count, Tally* tally) const {
    for (uint32_t done = 0; done < count;) {
        uint32_t same = of_one_vendor(ids + done, count - done);
        const VendorOps* vendor = whose(ids[done]);
        Failure failure{wire::kUnknownHandle, 0, "an id is not one that is waited for"};
        if (vendor != nullptr)
            failure = device::import_handles(*vendor->memory, ids + done, descriptors + done, same, tally);
        if (failure) {
            close_all(descriptors + done, vendor == nullptr ? same : 0);
            close_all(descriptors + done + same, count - done - same);
            discard_of(*this, ids, done);
            return failure;
        }
        done += same;
    }
    return {};
}

Failure Vendors::create(const uint64_t* ids, uint32_t count, Tally* tally) const {
    for (uint32_t done = 0; done < count;) {
        uint32_t same = of_one_vendor(ids + done, count - done);
        const VendorOps* vendor = whose(ids[done]);
        Failure failure{wire::kUnknownHandle, 0, "an id is not one that is waited for"};
        if (vendor != nullptr) failure = device::create_handles(*vendor->memory, ids + done, same, tally);
        if (failure) {
            discard_of(*this, ids, done);
            return failure;
        }
        done += same;
    }
    return {};
}

Failure Vendors::copy(Direction direction, uint64_t id, uint64_t offset, void* host, uint64_t size) const {
    const VendorOps* vendor = whose(id);
    if (vendor == nullptr) return {wire::kUnknownHandle, 0, "no such memory is here"};
    return device::copy_piece(*vendor->memory, direction, id, offset, host, size);
}

Failure Vendors::map(Tally* tally) const {
    bool complete = true;
    each([&](const VendorOps& vendor) { complete = complete && device::all_imported(*vendor.memory); });
    if (!complete) return {wire::kIncomplete, 0, "not every handle was imported"};
    return each_until([&](const VendorOps& vendor) { return device::map_imported(*vendor.memory, tally); });
}

Failure Vendors::discard(Tally* tally) const {
    return each_until([&](const VendorOps& vendor) { return device::discard_imported(*vendor.memory, tally); });
}

Failure Vendors::rehome(const uint64_t* ids, uint32_t count, Tally* tally) const {
    for (uint32_t i = 0; i < count; i++) {
        const VendorOps* vendor = whose(ids[i]);
        if (vendor == nullptr) return {wire::kUnknownHandle, 0, "no such memory is here"};
        Failure failure = device::rehome(*vendor->memory, ids[i], tally);
        if (failure) return failure;
    }
    return {};
}

// ---- memory that reaches beyond this process ------------------------------------------------------------------------

const VendorOps* Vendors::numbered(uint32_t vendor) const {
    return vendor < kLimit ? vendors_[vendor].load(std::memory_order_acquire) : nullptr;
}

bool Vendors::lend(const Blob& blob, const Borrower& borrower, Lent* lent, int* descriptor) const {
    const VendorOps* vendor = numbered(blob.vendor);
    return vendor != nullptr && device::lend(*vendor->memory, blob, borrower, lent, descriptor);
}

void Vendors::take_back_loan(const Blob& blob, const Borrower& borrower) const {
    const VendorOps* vendor = numbered(blob.vendor);
    if (vendor != nullptr) device::take_back_loan(*vendor->memory, blob, borrower);
}

void Vendors::forget_dead_borrowers() const {
    each([](const VendorOps& vendor) { device::forget_dead_borrowers(*vendor.memory); });
}

void Vendors::list_shared(uint64_t after, SharedPage* page) const {
    page->count = page->more = 0;
    page->after = after;
    page->passed = 0;
    each([&](const VendorOps& vendor) {
        if (page->more == 0) device::list_shared(*vendor.memory, page);
    });
}

// ---- control state, by the process itself -------------------------------------------------------------------------

Failure Vendors::snapshot(wire::SnapshotStep step) const {
    bool any = false;
    Failure failure = each_until([&](const VendorOps& vendor) {
        any = any || vendor.snapshot != nullptr;
        return vendor.snapshot == nullptr ? Failure{} : vendor.snapshot(step);
    });
    return any ? failure : Failure{wire::kRefused, 0, "no runtime of this process makes snapshots of itself"};
}

wire::SnapshotPhase Vendors::snapshot_phase() const {
    wire::SnapshotPhase phase = wire::kSnapshotUnknown;
    each([&](const VendorOps& vendor) {
        if (phase == wire::kSnapshotUnknown && vendor.snapshot_phase != nullptr) phase = vendor.snapshot_phase();
    });
    return phase;
}

bool Vendors::all_away() const {
    bool all = true;
    each([&](const VendorOps& vendor) { all = all && device::none_imported(*vendor.memory); });
    return all;
}

void Vendors::cover_addresses(int file) const {
    each([&](const VendorOps& vendor) { device::cover_addresses(*vendor.memory, file); });
}

bool Vendors::all_addresses() const {
    bool all = true;
    each([&](const VendorOps& vendor) { all = all && !vendor.memory->any_lost.load(std::memory_order_relaxed); });
    return all;
}

bool Vendors::regain_addresses() const {
    bool all = true;
    each([&](const VendorOps& vendor) { all = device::regain_lost(*vendor.memory) && all; });
    return all;
}

void Vendors::move_devices(const uint8_t* moves, uint32_t count, uint32_t stride) const {
    each([&](const VendorOps& vendor) {
        device::settle_moves(*vendor.memory, false);
        for (uint32_t i = 0; i < count; i++) {
            const auto* moved = reinterpret_cast<const wire::MovedRecord*>(moves + i * stride);
            device::move_device(*vendor.memory, moved->old_uuid, moved->new_uuid);
        }
    });
}

void Vendors::end_transaction() const {
    each([](const VendorOps& vendor) {
        device::end_exports(*vendor.memory);
        device::settle_moves(*vendor.memory, true);
    });
}

// ---- fork -------------------------------------------------------------------------------------------------------

void Vendors::each_lock(void (Lock::*act)()) {
    each([&](const VendorOps& vendor) {
        device::each_lock(*vendor.memory, act);
        if (vendor.each_lock != nullptr) vendor.each_lock(act);
    });
}

void Vendors::lock_for_fork() {
    adding_.acquire();
    each_lock(&Lock::acquire);
}

void Vendors::unlock_after_fork() {
    each_lock(&Lock::release);
    adding_.release();
}

// Where devices were placed stays: the numbers mean the same in the child.
void Vendors::reset_after_fork() {
    each([](const VendorOps& vendor) {
        device::forget_all_after_fork(*vendor.memory);
        vendor.reset_after_fork();
    });
    for (auto& place : vendors_) place.store(nullptr, std::memory_order_relaxed);
    first_.store(wire::kVendorNone, std::memory_order_relaxed);
    count_.store(0, std::memory_order_relaxed);
    entered_ = 0;
    adding_.reset_after_fork();
}

}  // namespace gcr
