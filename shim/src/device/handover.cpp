// SPDX-License-Identifier: Apache-2.0
#include "device/handover.h"

#include <unistd.h>

#include "device/devices.h"
#include "device/physical.h"
#include "device/release.h"
#include "device/reservations.h"
#include "device/runs.h"

namespace gcr {
namespace device {
namespace {

constexpr Failure kNotExpected{wire::kUnknownHandle, 0, "an id is not one that is waited for"};
constexpr Failure kAddressGone{wire::kAddressTaken, 0, "the address of what comes back was taken by another thread"};
constexpr Failure kNoList{wire::kNoMemory, 0, "no host memory for the list of mappings"};

bool is_exported(const Handle& handle) {
    return handle.exported;
}
bool is_imported(const Handle& handle) {
    return handle.imported;
}

template <typename Visit>
void each_handle(State& state, Visit visit) {
    Guard guard(state.lock);
    for (Handle* handle = state.handles.first(); handle != nullptr; handle = state.handles.after(handle)) visit(handle);
}

bool none(State& state, bool (*matches)(const Handle&)) {
    uint64_t count = 0;
    each_handle(state, [&](Handle* handle) { count += matches(*handle) ? 1 : 0; });
    return count == 0;
}

void add(Tally* tally, const Handle& handle) {
    tally->handles++;
    tally->bytes += handle.size;
}

// They are mapped when their address is had again.
void leave_out_lost(const State& state, Mappings* mappings) {
    size_t kept = 0;
    for (Mapping* mapping : *mappings)
        if (!is_lost(state, *mapping)) (*mappings)[kept++] = mapping;
    while (mappings->size() > kept) mappings->pop();
}

// All of them, or none: what was unmapped before one failed goes back.
Failure unmap_or_undo(const State& state, const Mappings& mappings) {
    size_t unmapped = 0;
    Result cause = unmap_all(state, mappings, &unmapped);
    if (cause == kSuccess) return {};
    Result undone = map_again(state, mappings, unmapped);
    const char* call = state.ops->names.unmap;
    if (undone != kSuccess) return {wire::kDriver, undone, "failed, and so did mapping again", call};
    return {wire::kDriver, cause, "failed; everything is mapped as before", call};
}

Result map_all_of(const State& state, Handle* handle) {
    for (Mapping* mapping = handle->mappings; mapping != nullptr; mapping = mapping->sibling) {
        Result result = map_one(state, *mapping);
        if (result == kSuccess) continue;
        for (Mapping* done = handle->mappings; done != mapping; done = done->sibling)
            state.ops->unmap(done->key, done->size);
        return result;
    }
    return kSuccess;
}

Result import_one(const State& state, Handle* handle, int descriptor) {
    Result result = state.ops->import_fd(descriptor, &handle->real);
    if (result != kSuccess) return result;
    result = map_all_of(state, handle);
    if (result == kSuccess)
        handle->imported = handle->kept = true;
    else
        state.ops->release(handle->real);
    return result;
}

Result create_one(State& state, Handle* handle) {
    Physical made{};
    Result result = create_once(state, handle->size, handle->asked, 0, &made);
    if (result != kSuccess) return result;
    handle->real = made.real;
    result = made.exportable ? map_all_of(state, handle) : state.ops->not_supported;
    if (result == kSuccess) {
        handle->imported = true;
        handle->kept = false;
    } else {
        state.ops->release(handle->real);
    }
    return result;
}

bool renews(const State& state) {
    return state.release.load(std::memory_order_relaxed) == Release::kReserveAgain;
}

// It came back, was unmapped, and is not wanted after all.
Result release_again(State& state, Handle* handle) {
    handle->imported = false;
    Result result = state.ops->release(handle->real);
    map_over_if_needed(state, *handle);
    if (renews(state)) renew_addresses_of(state, *handle);  // one that is lost is asked for before the next import
    return result;
}

void discard_one(State& state, Handle* handle) {
    for (Mapping* mapping = handle->mappings; mapping != nullptr; mapping = mapping->sibling)
        state.ops->unmap(mapping->key, mapping->size);
    release_again(state, handle);
}

bool all_expected(State& state, const uint64_t* ids, uint32_t count, Handle** handles) {
    Guard guard(state.lock);
    for (uint32_t i = 0; i < count; i++) {
        handles[i] = state.handles.find(ids[i]);
        if (handles[i] == nullptr || !handles[i]->released || handles[i]->imported) return false;
        for (uint32_t j = 0; j < i; j++)
            if (ids[j] == ids[i]) return false;
    }
    return true;
}

void close_from(const int* descriptors, uint32_t first, uint32_t count) {
    for (uint32_t i = first; i < count; i++) close_descriptor(descriptors[i]);
}

}  // namespace

void choose_foreign(State& state) {
    each_handle(state, [](Handle* handle) { handle->exported = handle->exported || is_foreign(*handle); });
}

bool all_exported(State& state) {
    return none(state, [](const Handle& handle) { return coverable(handle) && !handle.exported; });
}

Failure can_leave(State& state) {
    learn_release(state);
    if (state.release.load(std::memory_order_relaxed) == Release::kKept)
        return {wire::kRefused, 0,
                "this runtime keeps the memory of what was released, whatever is done to its address"};
    return renews(state) ? can_give_up_addresses(state, is_exported) : Failure{};
}

Failure give_up_addresses(State& state) {
    return renews(state) ? renew_addresses(state, is_exported) : Failure{};
}

Failure unmap_exported(State& state) {
    ScratchArray<Mapping*> mappings;
    if (!collect(state, is_exported, &mappings)) return kNoList;
    Current current(state);
    return unmap_or_undo(state, mappings);
}

Failure remap_exported(State& state) {
    ScratchArray<Mapping*> mappings;
    if (!collect(state, is_exported, &mappings)) return kNoList;
    leave_out_lost(state, &mappings);
    Current current(state);
    Result result = map_again(state, mappings, mappings.size());
    if (result != kSuccess) return {wire::kDriver, result, "mapping again failed"};
    return {};
}

// The tables do not change while the gate is closed: no lock across the driver's calls.
void release_exported(State& state, Tally* tally) {
    Current current(state);
    for (Handle* handle = state.handles.first(); handle != nullptr; handle = state.handles.after(handle)) {
        if (!handle->exported) continue;
        handle->released = true;
        handle->imported = false;
        if (state.ops->release(handle->real) == kSuccess) add(tally, *handle);  // else the count tells
        map_over_if_needed(state, *handle);
    }
}

Failure import_handles(State& state, const uint64_t* ids, const int* descriptors, uint32_t count, Tally* tally) {
    Handle* handles[wire::kMaxDescriptors];
    Failure unready = all_expected(state, ids, count, handles) ? Failure{} : kNotExpected;
    if (!unready && !reserve_lost(state)) unready = kAddressGone;
    if (unready) {
        close_from(descriptors, 0, count);
        return unready;
    }
    Current current(state);
    for (uint32_t i = 0; i < count; i++) {
        Result result = import_one(state, handles[i], descriptors[i]);
        close_descriptor(descriptors[i]);
        if (result == kSuccess) {
            add(tally, *handles[i]);
            continue;
        }
        close_from(descriptors, i + 1, count);
        while (i-- > 0) discard_one(state, handles[i]);
        return {wire::kDriver, result, "failed; nothing of this frame is kept", state.ops->names.import_fd};
    }
    return {};
}

Failure create_handles(State& state, const uint64_t* ids, uint32_t count, Tally* tally) {
    ScratchArray<Handle*> handles;
    if (!handles.reserve(count)) return {wire::kNoMemory, 0, "no host memory for the list of handles"};
    if (!all_expected(state, ids, count, handles.data())) return kNotExpected;
    if (!reserve_lost(state)) return kAddressGone;
    Current current(state);
    for (uint32_t i = 0; i < count; i++) {
        Result result = create_one(state, handles[i]);
        if (result == kSuccess) {
            add(tally, *handles[i]);
            continue;
        }
        while (i-- > 0) discard_one(state, handles[i]);
        uint32_t code = result == state.ops->out_of_memory ? wire::kNoRoom : wire::kDriver;
        return {code, result, "memory could not be made anew; nothing of this frame is kept"};
    }
    return {};
}

void discard_handles(State& state, const uint64_t* ids, uint32_t count) {
    Current current(state);
    for (uint32_t i = 0; i < count; i++) {
        Handle* handle = state.handles.find(ids[i]);
        if (handle != nullptr && handle->imported) discard_one(state, handle);
    }
}

bool all_imported(State& state) {
    return none(state, [](const Handle& handle) { return handle.released && !handle.imported; });
}

bool none_imported(State& state) {
    return none(state, is_imported);
}

Failure map_imported(State& state, Tally* tally) {
    ScratchArray<Mapping*> mappings;
    if (!collect(state, is_imported, &mappings)) return kNoList;
    Current current(state);
    size_t done = 0;
    Result result = give_access(state, mappings, &done);
    if (result != kSuccess) return {wire::kDriver, result, "failed", state.ops->names.set_access};
    each_handle(state, [&](Handle* handle) {
        if (handle->imported) add(tally, *handle);
    });
    return {};
}

Failure discard_imported(State& state, Tally* tally) {
    ScratchArray<Mapping*> mappings;
    if (!collect(state, is_imported, &mappings)) return kNoList;
    Current current(state);
    Failure failure = unmap_or_undo(state, mappings);
    if (failure) return failure;
    for (Handle* handle = state.handles.first(); handle != nullptr; handle = state.handles.after(handle)) {
        if (handle->imported && release_again(state, handle) == kSuccess) add(tally, *handle);
    }
    return {};
}

void end_exports(State& state) {
    each_handle(state, [](Handle* handle) { handle->exported = handle->released = handle->imported = false; });
}

}  // namespace device
}  // namespace gcr
