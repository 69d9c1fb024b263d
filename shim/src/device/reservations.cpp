// SPDX-License-Identifier: Apache-2.0
#include "device/reservations.h"

#include <sys/mman.h>

#include "core/sys.h"
#include "device/devices.h"
#include "device/runs.h"

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif

namespace gcr {
namespace device {
namespace {

constexpr uint32_t kPatienceMs = 200;  // the program stands meanwhile
constexpr uint32_t kAskEveryUs = 1000;

constexpr Failure kMixed{wire::kRefused, 0,
                         "memory that stays is reserved together with memory that leaves, and this runtime keeps what "
                         "leaves as long as the address is reserved"};
constexpr Failure kTaken{wire::kAddressTaken, 0,
                         "an address given up for an instant was taken by another thread; nothing is lost, and the "
                         "program waits until it is free"};

template <typename Visit>
void each_reservation(State& state, Visit visit) {
    for (Reservation* at = state.reservations.first(); at != nullptr; at = state.reservations.after(at)) visit(at);
}

template <typename Visit>
void each_mapping_in(const State& state, const Reservation& range, Visit visit) {
    Mapping* mapping = state.mappings.at_least(range.key);
    for (; mapping != nullptr && mapping->key < range.key + range.size; mapping = state.mappings.after(mapping))
        visit(mapping);
}

struct Count {
    size_t leaving = 0;
    size_t staying = 0;
};

Count count_in(const State& state, const Reservation& range, Leaves leaves) {
    Count count;
    each_mapping_in(state, range,
                    [&](const Mapping* mapping) { leaves(*mapping->handle) ? count.leaving++ : count.staying++; });
    return count;
}

size_t count_leaving(const State& state, Leaves leaves) {
    size_t count = 0;
    for (const Mapping* at = state.mappings.first(); at != nullptr; at = state.mappings.after(at))
        count += leaves(*at->handle) ? 1 : 0;
    return count;
}

Reservation* reservation_of(const State& state, uint64_t address) {
    Reservation* found = state.reservations.at_most(address);
    return found != nullptr && address - found->key < found->size ? found : nullptr;
}

void* pointer_at(uint64_t address) {
    return reinterpret_cast<void*>(address);
}

// What the driver maps for itself in the meantime would be put there, too. A kernel before 4.17 puts it elsewhere.
void fence(Reservation* range) {
    void* at = mmap(pointer_at(range->key), range->size, PROT_NONE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    range->fenced = at == pointer_at(range->key);
    if (at != MAP_FAILED && !range->fenced) munmap(at, range->size);
}

bool reserve_there(State& state, Reservation* range) {
    uint64_t given = 0;
    if (range->fenced) munmap(pointer_at(range->key), range->size);
    range->fenced = false;
    range->lost = state.ops->reserve(range->size, range->key, &given) != kSuccess;
    if (range->lost) fence(range);
    return !range->lost;
}

Result renew(State& state, Reservation* range) {
    Result result = state.ops->give_back(range->key, range->size);
    if (result == kSuccess && !reserve_there(state, range)) state.any_lost.store(true, std::memory_order_relaxed);
    return result;
}

// What took the address may be gone in a moment.
Failure renew_patiently(State& state, Reservation* range) {
    Result result = renew(state, range);
    if (result != kSuccess) return {wire::kDriver, result, "an address could not be given up"};
    Deadline patience(kPatienceMs);
    while (range->lost && !patience.passed()) {
        sleep_us(kAskEveryUs);
        reserve_there(state, range);
    }
    if (range->lost) return kTaken;
    state.any_lost.store(false, std::memory_order_relaxed);
    return {};
}

bool is_here(const Handle& handle) {
    return !handle.released || handle.imported;
}

// All of them, or none, and the address goes back to be asked for again.
bool map_what_is_here(State& state, Reservation* range) {
    ScratchArray<Mapping*> mappings;
    bool listed = true;
    each_mapping_in(state, *range, [&](Mapping* mapping) {
        if (is_here(*mapping->handle)) listed = mappings.push(mapping) && listed;
    });
    if (listed && map_again(state, mappings, mappings.size()) == kSuccess) return true;
    for (Mapping* mapping : mappings) state.ops->unmap(mapping->key, mapping->size);
    state.ops->give_back(range->key, range->size);
    range->lost = true;
    fence(range);
    return false;
}

template <typename Ask>
bool ask_for_lost(State& state, Ask ask) {
    if (!state.any_lost.load(std::memory_order_relaxed)) return true;
    Current current(state);
    bool all = true;
    each_reservation(state, [&](Reservation* range) {
        if (range->lost) all = ask(range) && all;
    });
    state.any_lost.store(!all, std::memory_order_relaxed);
    return all;
}

}  // namespace

bool record_reservation(State& state, uint64_t address, uint64_t size) {
    if (state.ops->used == nullptr) return true;
    Reservation* made = make<Reservation>();
    if (made == nullptr) return false;
    made->key = address;
    made->size = size;
    Guard guard(state.lock);
    state.reservations.insert(made);
    return true;
}

bool forget_reservation(State& state, uint64_t address) {
    Guard guard(state.lock);
    Reservation* found = state.reservations.find(address);
    if (found == nullptr) return false;
    state.reservations.erase(found);
    free(found);
    return true;
}

Result reserve_recorded(State& state, uint64_t size, uint64_t* address) {
    Result result = state.ops->reserve(size, 0, address);
    if (result != kSuccess || record_reservation(state, *address, size)) return result;
    state.ops->give_back(*address, size);
    *address = 0;
    return state.ops->out_of_memory;
}

Result give_back_recorded(State& state, uint64_t address, uint64_t size) {
    bool known = forget_reservation(state, address);
    Result result = state.ops->give_back(address, size);
    if (result != kSuccess && known) record_reservation(state, address, size);
    return result;
}

Failure can_give_up_addresses(State& state, Leaves leaves) {
    size_t known = 0;
    bool mixed = false;
    each_reservation(state, [&](const Reservation* range) {
        Count count = count_in(state, *range, leaves);
        known += count.leaving;
        mixed = mixed || (count.leaving > 0 && count.staying > 0);
    });
    if (mixed) return kMixed;
    if (known == count_leaving(state, leaves)) return {};
    return {wire::kRefused, 0, "memory lies at an address that was reserved unseen, and this runtime keeps it there"};
}

Failure renew_addresses(State& state, Leaves leaves) {
    Current current(state);
    Failure failure;
    each_reservation(state, [&](Reservation* range) {
        if (!failure && count_in(state, *range, leaves).leaving > 0) failure = renew_patiently(state, range);
    });
    return failure;
}

void renew_addresses_of(State& state, const Handle& gone) {
    for (const Mapping* mapping = gone.mappings; mapping != nullptr; mapping = mapping->sibling) {
        Reservation* range = reservation_of(state, mapping->key);
        if (range == nullptr || range->lost) continue;
        if (count_in(state, *range, [](const Handle& handle) { return !is_here(handle); }).staying == 0)
            renew(state, range);
    }
}

bool is_lost(const State& state, const Mapping& mapping) {
    if (!state.any_lost.load(std::memory_order_relaxed)) return false;
    const Reservation* range = reservation_of(state, mapping.key);
    return range != nullptr && range->lost;
}

bool reserve_lost(State& state) {
    return ask_for_lost(state, [&](Reservation* range) { return reserve_there(state, range); });
}

bool regain_lost(State& state) {
    return ask_for_lost(
        state, [&](Reservation* range) { return reserve_there(state, range) && map_what_is_here(state, range); });
}

}  // namespace device
}  // namespace gcr
