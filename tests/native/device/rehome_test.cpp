// SPDX-License-Identifier: Apache-2.0
//
// Memory that came back by import and that no other process holds gets new memory in its place: every byte, every mapping, every
// access as before, also when a call of the driver fails in the middle.
#include <unistd.h>

#include <vector>

#include "check.h"
#include "core/vendors.h"
#include "device/allocations.h"
#include "device/devices.h"
#include "device/held.h"
#include "device/mappings.h"
#include "device/rehome.h"
#include "fake_driver.h"

namespace {

using namespace gcr;
using namespace gcr::device;
using fake::Driver;
using fake::MiB;

constexpr uint64_t kPiece = 2 * MiB;

Vendors vendors;

struct Place {
    uint64_t address;
    uint64_t offset;
    uint64_t size;
    uint32_t write;
};

// A handle of two pieces that is mapped whole, and its second piece once more, for two devices; a plain allocation.
struct Program {
    Driver& driver;
    State& memory;
    Owner owner;
    uint64_t id = 0;
    uint64_t plain = 0;
    std::vector<Place> places;

    Program(Driver& of, State& its, bool in_parts) : driver(of), memory(its) {
        CHECK(allocate(memory, &owner, 3 * MiB, &plain) == kSuccess);
        uint64_t real = 0, range = 0;
        CHECK(memory.ops->create(2 * kPiece, memory.ops->plain(0), 0, true, &real) == kSuccess);
        CHECK(give_id(memory, real, 2 * kPiece, memory.ops->plain(0), kCovered, &id) == kSuccess);
        CHECK(memory.ops->reserve(8 * kPiece, 0, &range) == kSuccess);
        places = {{range, 0, 2 * kPiece, 1}};
        if (in_parts) places.push_back({range + 4 * kPiece, kPiece, kPiece, 3});
        for (const Place& place : places) map(place);
        fill();
    }

    void map(const Place& place) {
        Held held(memory, id);
        CHECK(memory.ops->map(place.address, place.size, place.offset, held.real()) == kSuccess);
        CHECK(record_mapping(memory, held.get(), place.address, place.size, place.offset) == kSuccess);
        CHECK(memory.ops->set_access(place.address, place.size, place.write, place.write) == kSuccess);
        for (int device = 0; device < 2; device++)
            if ((place.write & device_bit(device)) != 0)
                record_access(memory, place.address, place.size, device, true, true);
    }

    void fill() {
        for (uint64_t at = 0; at < 2 * kPiece; at += 4093) driver.at(places[0].address + at) = value(at);
        for (uint64_t at = 0; at < 3 * MiB; at += 4093) driver.at(plain + at) = value(at + 1);
    }

    static unsigned char value(uint64_t at) { return static_cast<unsigned char>(at * 31 + 7); }

    void is_as_it_was() {
        for (uint64_t at = 0; at < 2 * kPiece; at += 4093) CHECK(driver.at(places[0].address + at) == value(at));
        for (uint64_t at = 0; at < 3 * MiB; at += 4093) CHECK(driver.at(plain + at) == value(at + 1));
        for (const Place& place : places) {
            CHECK(driver.mapped.at(place.address).write == place.write);
            CHECK(&driver.at(place.address) == &driver.at(places[0].address + place.offset));  // one physical memory
        }
    }

    std::vector<uint64_t> ids() {
        std::vector<uint64_t> found;
        for (Handle* handle = memory.handles.first(); handle != nullptr; handle = memory.handles.after(handle))
            found.push_back(handle->key);
        return found;
    }
};

uint32_t export_all(std::vector<int>* descriptors) {
    static ExportBatch batch;
    batch.limit = 10;
    CHECK(!vendors.export_after(0, &batch) && batch.more == 0);
    descriptors->assign(batch.descriptors, batch.descriptors + batch.descriptor_count);
    return batch.count;
}

void close_all(const std::vector<int>& descriptors) {
    for (int descriptor : descriptors) close(descriptor);
}

// There and back: from now on no descriptor of it can be had.
void come_back_once(Program& program) {
    std::vector<int> descriptors;
    CHECK(export_all(&descriptors) == 2 && descriptors.size() == 2);
    Tally tally;
    CHECK(!vendors.hand_over(&tally));
    CHECK(!vendors.import(program.ids().data(), descriptors.data(), 2, &tally) && !vendors.map(&tally));
    vendors.end_transaction();
    program.is_as_it_was();
    CHECK(export_all(&descriptors) == 2 && descriptors.empty());
}

Failure rehome_all(Program& program, uint64_t* done) {
    Tally tally;
    std::vector<uint64_t> ids = program.ids();
    Failure failure = vendors.rehome(ids.data(), static_cast<uint32_t>(ids.size()), &tally);
    *done = tally.handles;
    return failure;
}

void leaves_again(Program& program) {
    std::vector<int> descriptors;
    CHECK(export_all(&descriptors) == 2 && descriptors.size() == 2);
    close_all(descriptors);
    vendors.end_transaction();
    program.is_as_it_was();
}

void the_same_bytes_at_the_same_places(Program& program) {
    come_back_once(program);
    size_t reals = program.driver.handles.size();
    uint64_t done = 0;
    CHECK(!rehome_all(program, &done) && done == 2);
    program.is_as_it_was();
    CHECK(program.driver.handles.size() == reals && program.driver.entered == 0);
    CHECK(!rehome_all(program, &done) && done == 0);  // they can leave: nothing is to be done
    Tally tally;
    CHECK(vendors.hand_over(&tally).code == wire::kIncomplete && tally.handles == 0);  // no descriptor of them has left
    program.is_as_it_was();
    leaves_again(program);
}

void a_call_fails(Program& program, const char* call, int after) {
    come_back_once(program);
    size_t reals = program.driver.handles.size(), ranges = program.driver.reserved.size();
    program.driver.broken = call;
    program.driver.broken_after = after;
    uint64_t done = 0;
    Failure failure = rehome_all(program, &done);
    bool struck = program.driver.broken.empty();
    program.driver.broken.clear();
    CHECK(struck == static_cast<bool>(failure) || !failure);
    program.is_as_it_was();
    CHECK(program.driver.handles.size() == reals && program.driver.reserved.size() == ranges);
    CHECK(!rehome_all(program, &done));
    leaves_again(program);
}

void there_is_no_room(Program& program) {
    come_back_once(program);
    uint64_t before = program.driver.room, done = 0;
    program.driver.room = program.driver.used() + kPiece;
    Failure failure = rehome_all(program, &done);
    CHECK(failure.code == wire::kNoRoom && done == 0);
    program.is_as_it_was();
    program.driver.room = before;
    CHECK(!rehome_all(program, &done) && done == 2);
    leaves_again(program);
}

void one_that_is_not_here(Program& program) {
    uint64_t unknown = program.id + 1000;
    Tally tally;
    CHECK(vendors.rehome(&unknown, 1, &tally).code == wire::kUnknownHandle);
    (void)program;
}

// unmaps: which of them are of the program's mappings; the others take away what was mapped aside for a copy
void of_a_driver(Driver& driver, State& memory, const VendorOps& vendor, bool in_parts,
                 const std::vector<int>& unmaps) {
    vendors.add(&vendor);
    vendors.enter_new();
    Program program(driver, memory, in_parts);
    the_same_bytes_at_the_same_places(program);
    for (const char* call : {"create", "reserve", "map", "set_access"})
        for (int after = 0; after < 10; after++) a_call_fails(program, call, after);
    for (int after : unmaps) a_call_fails(program, "unmap", after);
    there_is_no_room(program);
    one_that_is_not_here(program);
}

}  // namespace

int main(int argc, char** argv) {
    CHECK(argc == 2);
    if (argv[1][0] == 'p') of_a_driver(fake::plain, fake::plain_memory, fake::plain_vendor, true, {2, 5, 6});
    if (argv[1][0] == 's') of_a_driver(fake::strict, fake::strict_memory, fake::strict_vendor, false, {2, 5});
    return 0;
}
