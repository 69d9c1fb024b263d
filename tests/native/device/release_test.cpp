// SPDX-License-Identifier: Apache-2.0
//
// A runtime that keeps what was mapped at an address until the address is given back: the hand-over gives addresses up
// for an instant, and another thread may be given one.
#include <unistd.h>

#include <vector>

#include "check.h"
#include "core/vendors.h"
#include "device/allocations.h"
#include "device/held.h"
#include "device/mappings.h"
#include "device/release.h"
#include "device/reservations.h"
#include "fake_driver.h"

namespace {

using namespace gcr;
using namespace gcr::device;
using fake::Driver;
using fake::keeping;
using fake::MiB;

constexpr uint64_t kPiece = 2 * MiB;
constexpr int kForEver = 1 << 30;

State& memory = fake::keeping_memory;
Vendors vendors;
Owner owner;

struct Program {
    std::vector<uint64_t> plain;  // addresses of allocations
    uint64_t range;  // one reservation with two pieces of the program's own
    std::vector<uint64_t> pieces;  // ids

    std::vector<uint64_t> addresses() const {
        std::vector<uint64_t> all = plain;
        all.push_back(range);
        all.push_back(range + kPiece);
        return all;
    }
};

uint64_t make_piece(uint64_t address, Reason reason) {
    uint64_t real = 0, id = 0;
    CHECK(memory.ops->create(kPiece, memory.ops->plain(0), 0, true, &real) == kSuccess);
    CHECK(give_id(memory, real, kPiece, memory.ops->plain(0), reason, &id) == kSuccess);
    Held held(memory, id);
    CHECK(memory.ops->map(address, kPiece, 0, held.real()) == kSuccess);
    CHECK(record_mapping(memory, held.get(), address, kPiece, 0) == kSuccess);
    CHECK(memory.ops->set_access(address, kPiece, 1, 1) == kSuccess);
    record_access(memory, address, kPiece, 0, true, true);
    return id;
}

Program begin(Reason of_second_piece = kCovered) {
    Program program{};
    for (int i = 0; i < 2; i++) {
        program.plain.push_back(0);
        CHECK(allocate(memory, &owner, 3 * MiB, &program.plain.back()) == kSuccess);
    }
    CHECK(memory.ops->reserve(2 * kPiece, 0, &program.range) == kSuccess);
    CHECK(record_reservation(memory, program.range, 2 * kPiece));
    program.pieces.push_back(make_piece(program.range, kCovered));
    program.pieces.push_back(make_piece(program.range + kPiece, of_second_piece));
    unsigned char value = 1;
    for (uint64_t address : program.addresses()) keeping.at(address + 7) = value++;
    return program;
}

void is_as_it_was(const Program& program) {
    unsigned char value = 1;
    for (uint64_t address : program.addresses()) {
        CHECK(keeping.at(address + 7) == value++);
        CHECK(keeping.mapped.at(address).write == 1);
    }
}

void end(const Program& program) {
    free_all_of(memory, &owner);
    CHECK(unmap_range(memory, program.range, 2 * kPiece) == kSuccess);
    int result = 0;
    for (uint64_t id : program.pieces) CHECK(release_reference(memory, id, &result) && result == kSuccess);
    CHECK(give_back_recorded(memory, program.range, 2 * kPiece) == kSuccess);
    CHECK(keeping.reserved.empty() && keeping.mapped.empty() && keeping.handles.empty());
    CHECK(memory.reservations.empty() && memory.handles.empty() && keeping.entered == 0);
    keeping.physical.clear();  // what descriptors of ours still hold
}

struct Exported {
    std::vector<uint64_t> ids;
    std::vector<int> descriptors;
};

Exported export_all() {
    static ExportBatch batch;
    batch.limit = 10;
    CHECK(!vendors.export_after(0, &batch) && batch.more == 0);
    Exported all;
    for (uint32_t i = 0; i < batch.count; i++) all.ids.push_back(batch.records[i].id);
    all.descriptors.assign(batch.descriptors, batch.descriptors + batch.descriptor_count);
    CHECK(all.ids.size() == all.descriptors.size());
    return all;
}

Failure give(const Exported& exported) {
    std::vector<int> copies;
    for (int descriptor : exported.descriptors) copies.push_back(dup(descriptor));
    Tally tally;
    return vendors.import(exported.ids.data(), copies.data(), static_cast<uint32_t>(copies.size()), &tally);
}

void close_all(const Exported& exported) {
    for (int descriptor : exported.descriptors) close(descriptor);
}

// A descriptor of this driver holds its memory for good, so what the process keeps is counted by references.
int references() {
    int sum = 0;
    for (const auto& each : keeping.physical) sum += each.second.references;
    return sum;
}

Failure leave(Exported* exported) {
    memory.release.store(Release::kUnprobed);
    *exported = export_all();
    Tally tally;
    Failure failure = vendors.hand_over(&tally);
    CHECK(tally.handles == (failure ? 0 : exported->ids.size()));
    return failure;
}

void come_back(const Exported& exported, const Program& program) {
    Tally tally;
    CHECK(!give(exported) && !vendors.map(&tally) && tally.handles == exported.ids.size());
    vendors.end_transaction();
    CHECK(vendors.regain_addresses());
    is_as_it_was(program);
    close_all(exported);
    end(program);
}

void is_found_out(Driver::Keeps keeps, Release way) {
    keeping.keeps = keeps;
    Program program = begin();
    memory.release.store(Release::kUnprobed);
    learn_release(memory);
    CHECK(memory.release.load() == way);
    is_as_it_was(program);
    keeping.keeps = Driver::kUntilGivenBack;
    end(program);
}

// Another process tries the same meanwhile: it has as much at the second question, and again at the fourth.
void what_was_seen_to_be_gone_is_gone() {
    keeping.others_use = {0, 64 * MiB, 0, 64 * MiB};
    is_found_out(Driver::kNothing, Release::kMapOver);
    keeping.others_use.clear();
}

// Memory leaves with its address, which is ours again, and no copy of it stays with the process.
void all_leaves_and_comes_back(int others_stay) {
    Program program = begin();
    keeping.wanted_by_others = {program.plain[1], program.range};
    keeping.others_stay = others_stay;
    Exported exported;
    CHECK(!leave(&exported) && exported.ids.size() == 4 && vendors.all_addresses());
    CHECK(keeping.reserved.size() == 3 && keeping.mapped.empty() && references() == 4);
    CHECK(vendors.releases_by(Release::kReserveAgain) && !vendors.releases_by(Release::kMapOver));
    Tally tally;
    CHECK(!give(exported) && !vendors.map(&tally) && !vendors.discard(&tally) && references() == 4);
    come_back(exported, program);
}

// Nothing was released: all that has an address is mapped, the rest is when its address is free again.
void an_address_that_is_taken_is_waited_for(size_t which) {
    Program program = begin();
    uint64_t taken = which < 2 ? program.plain[which] : program.range;
    keeping.wanted_by_others = {taken};
    keeping.others_stay = kForEver;
    Exported exported;
    CHECK(leave(&exported).code == wire::kAddressTaken);
    for (uint64_t address : program.addresses())
        CHECK(keeping.mapped.count(address) == (address == taken || (which == 2 && address == taken + kPiece) ? 0 : 1));
    vendors.end_transaction();
    CHECK(!vendors.regain_addresses() && !vendors.all_addresses() && keeping.handles.size() == 4);
    keeping.others_stay = 1;
    keeping.broken = "map";  // had again, but not mapped: asked for once more
    keeping.broken_after = 0;
    CHECK(!vendors.regain_addresses() && !vendors.regain_addresses() && keeping.broken.empty());
    CHECK(vendors.regain_addresses() && vendors.all_addresses());
    is_as_it_was(program);
    close_all(exported);
    end(program);
}

// Handed over, given back and not wanted after all: what is lost then is missed by the next import alone.
void an_address_lost_while_memory_is_away_is_asked_for() {
    Program program = begin();
    Exported exported;
    Tally tally;
    CHECK(!leave(&exported) && !give(exported) && !vendors.map(&tally));
    keeping.wanted_by_others = {program.plain[0]};
    keeping.others_stay = 3;
    CHECK(!vendors.discard(&tally) && !vendors.all_addresses());
    CHECK(give(exported).code == wire::kAddressTaken && keeping.mapped.empty());
    CHECK(vendors.create(exported.ids.data(), 4, &tally).code == wire::kAddressTaken && keeping.mapped.empty());
    come_back(exported, program);
}

void refused(const Program& program) {
    Exported exported;
    size_t unmapped = keeping.unmapped_sizes.size();
    Failure failure = leave(&exported);
    CHECK(failure.code == wire::kRefused && keeping.unmapped_sizes.size() == unmapped + 1);  // the probe's
    is_as_it_was(program);
    vendors.end_transaction();
    close_all(exported);
}

void what_stays_holds_what_is_reserved_with_it() {
    Program program = begin(wire::kReasonShareableExport);
    refused(program);
    end(program);
}

void what_was_reserved_unseen_is_refused() {
    Program program = begin();
    CHECK(forget_reservation(memory, program.range));
    refused(program);
    CHECK(record_reservation(memory, program.range, 2 * kPiece));
    end(program);
}

void where_nothing_helps_nothing_is_touched() {
    keeping.keeps = Driver::kForGood;
    Program program = begin();
    refused(program);
    keeping.keeps = Driver::kUntilGivenBack;
    end(program);
}

}  // namespace

int main() {
    vendors.add(&fake::keeping_vendor);
    vendors.enter_new();
    is_found_out(Driver::kNothing, Release::kPlain);
    is_found_out(Driver::kUntilGivenBack, Release::kReserveAgain);
    is_found_out(Driver::kForGood, Release::kKept);
    what_was_seen_to_be_gone_is_gone();
    all_leaves_and_comes_back(0);
    all_leaves_and_comes_back(20);  // for some milliseconds: waited for
    for (size_t which : {0, 1, 2}) an_address_that_is_taken_is_waited_for(which);
    an_address_lost_while_memory_is_away_is_asked_for();
    what_stays_holds_what_is_reserved_with_it();
    what_was_reserved_unseen_is_refused();
    where_nothing_helps_nothing_is_touched();
}
