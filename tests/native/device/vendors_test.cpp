// SPDX-License-Identifier: Apache-2.0
//
// Two vendors in one process, one agent: their handles leave together and come back together, or neither does.
#include "core/vendors.h"

#include <fcntl.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "check.h"
#include "device/allocations.h"
#include "device/peers.h"
#include "fake_driver.h"

namespace {

using namespace gcr;
using fake::MiB;
using fake::plain;
using fake::strict;

Vendors vendors;
device::Owner plain_owner, strict_owner{1, {}, 0, 0};
std::vector<uint64_t> plain_at, strict_at;  // what the program allocated

struct Exported {
    std::vector<uint64_t> ids;
    std::vector<int> descriptors;  // -1: kept
    std::vector<uint32_t> devices;
};

bool is_open(int fd) {
    return fcntl(fd, F_GETFD) >= 0;
}

Exported export_all(uint32_t limit) {
    static ExportBatch batch;
    Exported all;
    uint64_t after = 0;
    do {
        batch.limit = limit;
        CHECK(!vendors.export_after(after, &batch) && batch.count <= limit);
        uint32_t next = 0;
        for (uint32_t i = 0; i < batch.count; i++) {
            CHECK(batch.records[i].id > after);
            after = batch.records[i].id;
            bool kept = (batch.records[i].flags & wire::kHandleKept) != 0;
            all.ids.push_back(after);
            all.descriptors.push_back(kept ? -1 : batch.descriptors[next++]);
            all.devices.push_back(batch.records[i].device);
        }
        CHECK(next == batch.descriptor_count && batch.last_id == after);
    } while (batch.more != 0);
    return all;
}

std::vector<wire::MappingRecord> list_mappings(uint32_t limit) {
    static MappingPage page;
    std::vector<wire::MappingRecord> all;
    uint64_t cursor = 0;
    do {
        page.limit = limit;
        vendors.mappings_after(cursor, &page);
        CHECK(page.count <= limit && (page.more == 0 || page.cursor != cursor));
        all.insert(all.end(), page.records, page.records + page.count);
        cursor = page.cursor;
    } while (page.more != 0);
    return all;
}

Failure import_all(Exported again) {
    std::reverse(again.ids.begin(), again.ids.end());  // so that the vendors take turns in no order of ours
    std::reverse(again.descriptors.begin(), again.descriptors.end());
    Tally tally;
    return vendors.import(again.ids.data(), again.descriptors.data(), static_cast<uint32_t>(again.ids.size()), &tally);
}

Exported duplicate(const Exported& original) {
    Exported copy = original;
    for (int& descriptor : copy.descriptors) descriptor = dup(descriptor);
    return copy;
}

void allocate_some() {
    for (int i = 0; i < 3; i++) {
        plain_at.push_back(0);
        strict_at.push_back(0);
        CHECK(device::allocate(fake::plain_memory, &plain_owner, 3 * MiB, &plain_at.back()) == 0);
        CHECK(device::allocate(fake::strict_memory, &strict_owner, 3 * MiB, &strict_at.back()) == 0);
        plain.at(plain_at.back() + 5) = strict.at(strict_at.back() + 5) = static_cast<unsigned char>(100 + i);
    }
}

void everything_is_as_it_was() {
    for (size_t i = 0; i < plain_at.size(); i++) {
        CHECK(plain.at(plain_at[i] + 5) == 100 + i && strict.at(strict_at[i] + 5) == 100 + i);
        CHECK(plain.mapped.at(plain_at[i]).write == 1 && strict.mapped.at(strict_at[i]).write == 2);
    }
}

void who_comes_first_is_first_and_numbers_go_on() {
    CHECK(vendors.first() == wire::kVendorNone && vendors.whose(device::first_id(wire::kNvidia)) == nullptr);
    vendors.add(&fake::strict_vendor);
    vendors.enter_new();
    vendors.add(&fake::plain_vendor);
    vendors.add(&fake::plain_vendor);
    CHECK(vendors.first() == wire::kAscend && vendors.whose(device::first_id(wire::kNvidia)) == &fake::plain_vendor);
    CHECK(vendors.whose(77) == nullptr && vendors.whose(device::first_id(wire::kAmd)) == nullptr);
}

// A vendor that came since the last request has no numbers yet: nothing of it leaves, and the hand-over says so.
void what_has_no_number_does_not_leave() {
    allocate_some();
    Exported some = export_all(2);
    CHECK(some.ids.size() == strict_at.size());
    for (int descriptor : some.descriptors) close(descriptor);
    Tally tally;
    CHECK(vendors.hand_over(&tally).code == wire::kIncomplete && plain.mapped.size() == 3 && strict.mapped.size() == 3);
    vendors.end_transaction();
    vendors.enter_new();
}

void devices_are_numbered_once() {
    Array<wire::DeviceRecord> devices;
    wire::StatusRecord status{};
    vendors.status(&status, &devices);
    CHECK(devices.size() == 4 && status.handles == 6 && status.covered_bytes == 24 * MiB && status.contexts == 2);
    for (const wire::DeviceRecord& device : devices) {
        bool strict_one = device.uuid[0] >= 2 && device.ordinal < 2;  // strict was learnt first: 0 and 1
        CHECK(strict_one ? device.uuid[0] == 2 + device.ordinal : device.uuid[0] == 1 + device.ordinal - 2);
        CHECK(device.handles == (device.ordinal == 1 || device.ordinal == 2 ? 3u : 0u));
    }
    wire::StuckRecord stuck[4];
    CHECK(vendors.stuck(stuck, 4) == 2 && stuck[0].device == 3 && stuck[1].device == 1 && vendors.stuck(stuck, 1) == 1);
    devices.dispose();
}

void mappings_name_the_same_devices(uint32_t limit) {
    std::vector<wire::MappingRecord> all = list_mappings(limit);
    CHECK(all.size() == 6);
    for (size_t i = 0; i < all.size(); i++) {
        CHECK(all[i].address == (i < 3 ? plain_at[i] : strict_at[i - 3]));
        CHECK(all[i].write_devices == (i < 3 ? 1u << 2 : 1u << 1) && all[i].read_devices == all[i].write_devices);
    }
}

void a_failed_export_is_met_again() {
    static ExportBatch batch;
    strict.broken = "export_fd";
    strict.broken_after = 1;
    strict.broken_times = 2;
    batch.limit = 10;
    CHECK(!vendors.export_after(0, &batch) && batch.count == 4 && batch.more == 1);
    for (uint32_t i = 0; i < batch.descriptor_count; i++) close(batch.descriptors[i]);
    Failure failure = vendors.export_after(batch.last_id, &batch);
    CHECK(failure.code == wire::kDriver && failure.vendor_error == fake::kBroken && batch.count == 0);
    CHECK(strcmp(failure.call, "export_fd") == 0 && strict.broken.empty());
    Tally tally;
    CHECK(vendors.hand_over(&tally).code == wire::kIncomplete);  // what did not leave is not taken to have left
    vendors.end_transaction();
}

void one_refusal_is_everybodys() {
    Tally tally;
    strict.broken = "unmap";
    strict.broken_after = strict.broken_times = 1;
    Failure failure = vendors.hand_over(&tally);
    CHECK(failure.code == wire::kDriver && tally.handles == 0 && strict.broken.empty());
    CHECK(plain.mapped.size() == 3 && strict.mapped.size() == 3);
    everything_is_as_it_was();
}

void all_leave(const Exported& exported) {
    Tally tally;
    plain.unmapped_sizes.clear();
    strict.unmapped_sizes.clear();
    CHECK(!vendors.hand_over(&tally) && tally.handles == exported.ids.size() && tally.bytes == 24 * MiB);
    CHECK(plain.mapped.empty() && strict.mapped.empty() && plain.handles.empty() && strict.handles.empty());
    CHECK(plain.unmapped_sizes == std::vector<uint64_t>{12 * MiB});  // side by side: one call
    CHECK(strict.unmapped_sizes == std::vector<uint64_t>(3, 4 * MiB));
}

void a_failed_import_leaves_nothing(const Exported& exported) {
    Exported copies = duplicate(exported);
    plain.broken = "import_fd";  // the last ones of the frame
    plain.broken_after = 1;
    plain.broken_times = 1;
    Failure failure = import_all(copies);
    CHECK(failure.code == wire::kDriver && strcmp(failure.call, "import_fd") == 0);
    CHECK(plain.mapped.empty() && strict.mapped.empty() && plain.handles.empty() && strict.handles.empty());
    for (int descriptor : copies.descriptors) CHECK(!is_open(descriptor));
}

void a_stranger_in_the_list_is_refused(const Exported& exported, uint64_t stranger) {
    Exported copies = duplicate(exported);
    copies.ids[2] = stranger;
    CHECK(import_all(copies).code == wire::kUnknownHandle);
    CHECK(plain.mapped.empty() && strict.mapped.empty());
    for (int descriptor : copies.descriptors) CHECK(!is_open(descriptor));
}

void all_come_back(const Exported& exported) {
    Tally tally;
    Exported copies = duplicate(exported);
    CHECK(vendors.map(&tally).code == wire::kIncomplete);
    CHECK(!import_all(copies) && import_all(duplicate(exported)).code == wire::kUnknownHandle);
    CHECK(!vendors.map(&tally) && tally.handles == 6);
    everything_is_as_it_was();
    Tally again;
    CHECK(!vendors.discard(&again) && again.handles == 6 && plain.mapped.empty() && strict.mapped.empty());
    CHECK(!import_all(duplicate(exported)) && !vendors.map(&tally));
    vendors.end_transaction();
    everything_is_as_it_was();
}

void what_came_back_is_kept() {
    Exported exported = export_all(10);
    for (int descriptor : exported.descriptors) CHECK(descriptor == -1);
    vendors.end_transaction();
    fake::released.clear();
    CHECK(device::free_when_idle(fake::strict_memory, device::take_allocation(fake::strict_memory, strict_at[0])) == 0);
    CHECK(fake::released == std::vector<uint64_t>{exported.ids[3]});
}

// In a child of its own: what the tables held is left to the parent.
void a_child_starts_with_nobody() {
    vendors.lock_for_fork();
    pid_t child = fork();
    if (child == 0) {
        vendors.reset_after_fork();
        CHECK(vendors.first() == wire::kVendorNone && fake::plain_memory.handles.empty());
        vendors.add(&fake::plain_vendor);
        vendors.lock_for_fork();
        vendors.unlock_after_fork();
        CHECK(vendors.whose(device::first_id(wire::kNvidia)) != nullptr);
        _exit(0);
    }
    vendors.unlock_after_fork();
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(vendors.first() == wire::kAscend && !fake::plain_memory.handles.empty());
}

void the_last_vendor_may_have_nothing() {
    device::free_all_of(fake::strict_memory, &strict_owner);
    CHECK(export_all(2).ids.size() == 3 && list_mappings(2).size() == 3);
    vendors.end_transaction();
}

void nothing_is_left() {
    device::free_all_of(fake::plain_memory, &plain_owner);
    CHECK(plain.handles.empty() && strict.handles.empty() && plain.reserved.empty() && strict.reserved.empty());
    CHECK(plain.entered == 0 && strict.entered == 0);
}

}  // namespace

int main() {
    who_comes_first_is_first_and_numbers_go_on();
    what_has_no_number_does_not_leave();
    devices_are_numbered_once();
    for (uint32_t limit : {1, 2, 3, 5, 6, 10}) mappings_name_the_same_devices(limit);
    a_failed_export_is_met_again();
    Exported exported = export_all(2);
    CHECK(exported.ids.size() == 6 && exported.devices == (std::vector<uint32_t>{2, 2, 2, 1, 1, 1}));
    one_refusal_is_everybodys();
    all_leave(exported);
    a_failed_import_leaves_nothing(exported);
    a_stranger_in_the_list_is_refused(exported, 77);
    a_stranger_in_the_list_is_refused(exported, exported.ids[4]);
    a_stranger_in_the_list_is_refused(exported, device::first_id(wire::kAmd));
    all_come_back(exported);
    what_came_back_is_kept();
    a_child_starts_with_nobody();
    the_last_vendor_may_have_nothing();
    nothing_is_left();
    for (int descriptor : exported.descriptors) close(descriptor);
}
