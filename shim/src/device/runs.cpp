// SPDX-License-Identifier: Apache-2.0
#include "device/runs.h"

namespace gcr {
namespace device {
namespace {

// The driver takes a whole run in one call; across two of the program's reservations it may refuse, so a refused run is
// tried piece by piece.
struct Run {
    size_t first;
    size_t count;
    uint64_t address;
    uint64_t size;
};

using Alike = bool (*)(const Mapping&, const Mapping&);

Run whole(const Mappings& mappings, size_t i) {
    return {i, 1, mappings[i]->key, mappings[i]->size};
}

bool never(const Mapping&, const Mapping&) {
    return false;
}
bool same_access(const Mapping& a, const Mapping& b) {
    return a.read == b.read && a.write == b.write;
}
bool any_access(const Mapping&, const Mapping&) {
    return true;
}

Run run_from(const Mappings& mappings, size_t first, Alike alike) {
    Run run = whole(mappings, first);
    while (first + run.count < mappings.size()) {
        const Mapping& next = *mappings[first + run.count];
        if (next.key != run.address + run.size || !alike(*mappings[first], next)) break;
        run.size += next.size;
        run.count++;
    }
    return run;
}

// Calls `act` for runs in address order.
template <typename Act>
Result each_run(const State& state, const Mappings& mappings, Alike alike, size_t* done, Act act) {
    if ((state.ops->quirks & kOneMappingACall) != 0) alike = never;
    for (*done = 0; *done < mappings.size();) {
        Run run = run_from(mappings, *done, alike);
        Result result = act(run);
        if (result != kSuccess && run.count > 1) result = act(run = whole(mappings, *done));
        if (result != kSuccess) return result;
        *done += run.count;
    }
    return kSuccess;
}

}  // namespace

bool collect(State& state, bool (*wanted)(const Handle&), Mappings* mappings) {
    Guard guard(state.lock);
    for (Mapping* mapping = state.mappings.first(); mapping != nullptr; mapping = state.mappings.after(mapping))
        if (wanted(*mapping->handle) && !mappings->push(mapping)) return false;
    return true;
}

Result unmap_all(const State& state, const Mappings& mappings, size_t* done) {
    return each_run(state, mappings, any_access, done,
                    [&](const Run& run) { return state.ops->unmap(run.address, run.size); });
}

Result give_access(const State& state, const Mappings& mappings, size_t* done) {
    return each_run(state, mappings, same_access, done, [&](const Run& run) {
        const Mapping& mapping = *mappings[run.first];
        return state.ops->set_access(run.address, run.size, mapping.read, mapping.write);
    });
}

Result map_again(const State& state, const Mappings& mappings, size_t count) {
    for (size_t i = 0; i < count; i++) {
        const Mapping& mapping = *mappings[i];
        Result result = map_one(state, mapping);
        if (result == kSuccess) result = state.ops->set_access(mapping.key, mapping.size, mapping.read, mapping.write);
        if (result != kSuccess) return result;
    }
    return kSuccess;
}

Result map_one(const State& state, const Mapping& mapping) {
    return state.ops->map(mapping.key, mapping.size, mapping.offset, mapping.handle->real);
}

}  // namespace device
}  // namespace gcr
