// SPDX-License-Identifier: Apache-2.0
//
// Drivers that keep books in host memory and refuse what a real one would: two of them, so that two vendors can be had in
// one process. `plain` takes ranges of mappings in one call; `strict` does the first of them and says success; `keeping`
// is as a runtime that does not let go of what was mapped at an address before the address is given back.
#ifndef GCR_TEST_FAKE_DRIVER_H
#define GCR_TEST_FAKE_DRIVER_H

#include <stdlib.h>

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/vendor.h"
#include "device/state.h"

namespace fake {

constexpr int32_t kNoRoom = 2, kInvalid = 1, kBroken = 999;
constexpr uint64_t MiB = 1ull << 20;

struct Free {
    void operator()(unsigned char* bytes) const { free(bytes); }
};

// Not a vector, which writes zeros: under ThreadSanitizer every byte written takes four of shadow memory.
struct Physical {
    uint64_t size;
    int references = 1;
    std::unique_ptr<unsigned char[], Free> bytes{static_cast<unsigned char*>(calloc(size, 1))};
};

struct Mapped {
    uint64_t size;
    uint64_t offset;
    uint64_t real;
    uint32_t read;
    uint32_t write;
};

// What a stream has behind it when it does what comes next: of each stream, how many operations.
using Clock = std::map<uint64_t, uint64_t>;

struct Stream {
    uint64_t enqueued = 0;
    uint64_t done = 0;
    Clock after;  // of other streams
    bool alive = true;
    bool captures = false;
};

struct Event {
    uint64_t stream;
    uint64_t position;
    Clock after;
};

struct Driver {
    uint32_t devices = 2;
    uint64_t granularity = 2 * MiB;
    uint64_t room = 1ull << 40;  // bytes of physical memory
    uint32_t captures = 0;
    bool may_export = true;
    std::string broken;  // the name of an operation that fails …
    int broken_after = 0;  // … once it succeeded so often
    int broken_times = 1;  // … so often, then no more
    std::pair<std::string, std::function<void()>> meanwhile;  // what another thread does during an operation, once

    uint64_t next_address = 0;
    uint64_t next_real = 1;
    std::map<uint64_t, uint64_t> reserved;  // address -> size
    std::map<uint64_t, Physical> physical;
    std::map<uint64_t, uint64_t> handles;  // real -> which physical; an import is another real of the same one
    std::map<uint64_t, Mapped> mapped;
    std::vector<uint64_t> unmapped_sizes;  // bytes of each unmap, in order
    uint32_t synchronized = 0;
    uint32_t entered = 0;  // threads of ours inside

    std::map<uint64_t, Stream> streams;  // by id
    std::map<uint64_t, Event> events;
    uint64_t next_event = 1;
    uint64_t calling = 0;  // whose thread; a stream of a thread must be named by that thread alone

    // `keeping` alone
    enum Keeps { kNothing, kUntilGivenBack, kForGood };
    Keeps keeps = kUntilGivenBack;
    std::map<uint64_t, std::vector<uint64_t>> kept;  // reservation -> which physical
    std::set<uint64_t> wanted_by_others;  // who takes them as soon as they are given back …
    int others_stay = 0;  // … and keeps them for so many attempts to have them again
    std::vector<uint64_t> others_use;  // bytes of other processes, each time the device's count is asked for

    bool fails(const char* operation);
    uint64_t used() const;
    unsigned char& at(uint64_t address);
};

extern Driver plain, strict, keeping;
extern gcr::device::State plain_memory, strict_memory, keeping_memory;  // wire::kNvidia, wire::kAscend, wire::kAmd
extern const gcr::VendorOps plain_vendor, strict_vendor, keeping_vendor;

extern std::vector<uint64_t> released;  // what the agent was told to say
extern std::function<void()> on_released;  // what another thread does meanwhile
extern std::vector<uint8_t> asked_for;  // the UUID of the device that had no room
extern std::function<void()> on_asked;

}  // namespace fake

#endif
