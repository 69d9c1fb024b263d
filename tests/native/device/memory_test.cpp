// SPDX-License-Identifier: Apache-2.0
//
// One vendor's memory: what is allocated is mapped and accessible, what is freed leaves nothing behind, whatever fails.
#include "check.h"
#include "core/coverage.h"
#include "device/allocations.h"
#include "device/devices.h"
#include "device/held.h"
#include "device/mappings.h"
#include "device/peers.h"
#include "device/physical.h"
#include "fake_driver.h"

namespace {

using namespace gcr::device;
using fake::MiB;
using fake::plain;

State& memory = fake::plain_memory;

uint64_t allocated(Owner* owner, uint64_t size) {
    uint64_t address = 0;
    CHECK(allocate(memory, owner, size, &address) == kSuccess);
    return address;
}

Result freed(uint64_t address) {
    Allocation* allocation = take_allocation(memory, address);
    CHECK(allocation != nullptr);
    return free_when_idle(memory, allocation);
}

void nothing_is_left(Owner* owner) {
    free_all_of(memory, owner);
    CHECK(plain.physical.empty() && plain.mapped.empty() && plain.reserved.empty() && plain.handles.empty());
    CHECK(memory.handles.empty() && memory.mappings.empty() && memory.allocations.empty());
    CHECK(plain.entered == 0);
}

void small_ones_share_and_large_ones_do_not() {
    Owner owner{1, {}, 0, 0};
    uint64_t first = allocated(&owner, 100), second = allocated(&owner, 100), large = allocated(&owner, 3 * MiB);
    CHECK(second - first == 512 && plain.physical.size() == 2 && plain.used() == 6 * MiB);
    CHECK(plain.mapped.at(large).read == 2 && plain.mapped.at(large).write == 2);
    CHECK(freed(large) == kSuccess && plain.used() == 2 * MiB && plain.synchronized > 0);
    CHECK(freed(first) == kSuccess && freed(second) == kSuccess && plain.used() == 2 * MiB);  // one empty slab is kept
    nothing_is_left(&owner);
}

void a_failed_step_leaves_nothing(const char* operation, Result expected) {
    Owner owner;
    uint64_t address = 0;
    plain.broken = operation;
    plain.broken_after = 0;
    plain.broken_times = 2;  // create is tried a second time, as asked
    CHECK(allocate(memory, &owner, 3 * MiB, &address) == expected && address == 0);
    plain.broken.clear();
    nothing_is_left(&owner);
}

void a_free_that_cannot_wait_did_not_happen() {
    Owner owner;
    uint64_t address = allocated(&owner, 3 * MiB);
    plain.broken = "synchronize";
    plain.broken_times = 1;
    CHECK(freed(address) == fake::kBroken && allocation_at(memory, address + 7) != nullptr);
    CHECK(freed(address) == kSuccess);
    nothing_is_left(&owner);
}

// Spares first: what others give back may cost them something.
void out_of_memory_takes_spares_then_asks_once() {
    Owner owner{1, {}, 0, 0};
    uint64_t more = 0;
    int asked = 0;
    learn_devices(memory);
    fake::on_asked = [&] { asked++; };
    plain.room = 4 * MiB;
    CHECK(freed(allocated(&owner, 100)) == kSuccess && plain.used() == 2 * MiB);
    uint64_t large = allocated(&owner, 4 * MiB);  // only after the empty slab went
    CHECK(asked == 0);
    CHECK(allocate(memory, &owner, 2 * MiB, &more) == fake::kNoRoom && asked == 1);
    uint8_t uuid[16];
    CHECK(uuid_of(memory, 1, uuid) && fake::asked_for == std::vector<uint8_t>(uuid, uuid + 16));
    fake::on_asked = [] { plain.room = 6 * MiB; };
    CHECK(allocate(memory, &owner, 2 * MiB, &more) == kSuccess);
    fake::on_asked = nullptr;
    plain.room = 1ull << 40;
    CHECK(freed(large) == kSuccess && freed(more) == kSuccess);
    nothing_is_left(&owner);
}

void a_device_that_moved_is_asked_for_by_its_new_name() {
    uint8_t uuid[16], old[16], other[16] = {9, 9, 9};
    CHECK(uuid_of(memory, 1, old));
    move_device(memory, old, other);
    CHECK(uuid_of(memory, 1, uuid) && memcmp(uuid, old, sizeof uuid) == 0);
    settle_moves(memory, true);
    CHECK(uuid_of(memory, 1, uuid) && memcmp(uuid, other, sizeof uuid) == 0);
    move_device(memory, other, old);
    settle_moves(memory, true);
    CHECK(!uuid_of(memory, -1, uuid) && !uuid_of(memory, kMaxDevices, uuid));
}

void a_free_during_a_capture_comes_after_it() {
    Owner owner;
    uint64_t address = allocated(&owner, 3 * MiB);
    put_off(memory, take_allocation(memory, address));
    plain.captures = 1;
    CHECK(!give_back_spares(memory) && plain.used() == 4 * MiB && allocation_at(memory, address) == nullptr);
    plain.captures = 0;
    CHECK(give_back_spares(memory) && plain.used() == 0);
    nothing_is_left(&owner);
}

void a_device_that_was_reset_is_served_anew() {
    Owner owner;
    for (int turn = 0; turn < 3; turn++) {
        uint64_t small = allocated(&owner, 100), large = allocated(&owner, 3 * MiB);
        CHECK(plain.mapped.count(large) == 1 && plain.mapped.count(small) == 1 && plain.used() == 6 * MiB);
        free_all_of(memory, &owner);
        CHECK(plain.mapped.empty() && plain.used() == 0);
    }
    CHECK(allocated(&owner, 100) != 0 && owner.slab_bytes == 2 * MiB && owner.empty_slabs == 0);
    nothing_is_left(&owner);
}

void peers_reach_what_is_and_what_comes() {
    Owner owner, accessor{1, {}, 0, 0};
    uint64_t before = allocated(&owner, 3 * MiB);
    add_peer(memory, &accessor, &owner);
    uint64_t after = allocated(&owner, 3 * MiB);
    CHECK(plain.mapped.at(before).write == 3 && plain.mapped.at(after).write == 3);
    remove_peer(memory, &accessor, &owner);
    CHECK(plain.mapped.at(before).read == 1 && plain.mapped.at(after).read == 1);
    nothing_is_left(&owner);
}

void a_handle_lives_as_long_as_a_mapping() {
    Physical made{};
    Properties asked = memory.ops->plain(0);
    uint64_t id = 0, again = 0, address = 0;
    Result result = kSuccess;
    CHECK(create_physical(memory, 2 * MiB, asked, 0, &made) == kSuccess && made.exportable);
    CHECK(give_id(memory, made.real, 2 * MiB, asked, kCovered, &id) == kSuccess && vendor_of(id) == 1);
    CHECK(memory.ops->reserve(2 * MiB, 0, &address) == kSuccess);
    {
        Held held(memory, id);
        CHECK(memory.ops->map(address, 2 * MiB, 0, held.real()) == kSuccess);
        CHECK(record_mapping(memory, held.get(), address, 2 * MiB, 0) == kSuccess);
    }
    CHECK(retain_at(memory, address + 5, &again) && again == id);
    CHECK(release_reference(memory, id, &result) && release_reference(memory, id, &result) && plain.used() != 0);
    CHECK(!release_reference(memory, id, &result) && as_passed_on(id) == 0 && as_passed_on(77) == 77);
    CHECK(unmap_range(memory, address, 2 * MiB) == kSuccess && plain.used() == 0);
    CHECK(memory.ops->give_back(address, 2 * MiB) == kSuccess && memory.handles.empty());
}

void calls_of_the_program_leave_plain_memory_alone() {
    Owner owner;
    uint64_t address = allocated(&owner, 3 * MiB), id = 77;
    CHECK(unmap_range(memory, address, 4 * MiB) == fake::kInvalid && plain.mapped.size() == 1);
    CHECK(touches_internal(memory, address + MiB, 1) && retain_at(memory, address, &id) && id == 0);
    nothing_is_left(&owner);
}

void what_cannot_be_exported_is_counted() {
    Owner owner;
    plain.may_export = false;
    uint64_t address = allocated(&owner, 3 * MiB);
    CHECK(gcr::uncovered(gcr::wire::kReasonUnexportable).bytes == 4 * MiB);
    CHECK(freed(address) == kSuccess && gcr::uncovered(gcr::wire::kReasonUnexportable).count == 0);
    plain.may_export = true;
    nothing_is_left(&owner);
}

void a_ledger_forgets_before_the_driver_frees() {
    Ledger& ledger = memory.carried;
    int owner = 0;
    ledger.add(10, {100, gcr::wire::kReasonPool, &owner});
    ledger.add(10, {7, gcr::wire::kReasonPool, nullptr});  // there already
    CHECK(ledger.total_bytes() == 100 && gcr::uncovered(gcr::wire::kReasonPool).bytes == 100);
    CHECK(ledger.free_with(10, [&] { return ledger.bytes_of(10) == 0 ? 5 : 0; }) == 5 && ledger.bytes_of(10) == 100);
    CHECK(ledger.free_with(10, [] { return 0; }) == 0 && ledger.total_bytes() == 0);
    ledger.add(11, {50, gcr::wire::kReasonPool, &owner});
    ledger.forget_owned_by(&owner);
    CHECK(ledger.total_bytes() == 0 && gcr::uncovered(gcr::wire::kReasonPool).count == 0);
}

}  // namespace

int main() {
    small_ones_share_and_large_ones_do_not();
    a_failed_step_leaves_nothing("create", fake::kBroken);
    a_failed_step_leaves_nothing("reserve", fake::kNoRoom);
    a_failed_step_leaves_nothing("map", fake::kBroken);
    a_failed_step_leaves_nothing("set_access", fake::kBroken);
    a_free_that_cannot_wait_did_not_happen();
    out_of_memory_takes_spares_then_asks_once();
    a_device_that_moved_is_asked_for_by_its_new_name();
    a_free_during_a_capture_comes_after_it();
    a_device_that_was_reset_is_served_anew();
    peers_reach_what_is_and_what_comes();
    a_handle_lives_as_long_as_a_mapping();
    calls_of_the_program_leave_plain_memory_alone();
    what_cannot_be_exported_is_counted();
    a_ledger_forgets_before_the_driver_frees();
}
