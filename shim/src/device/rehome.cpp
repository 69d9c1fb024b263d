// SPDX-License-Identifier: Apache-2.0
#include "device/rehome.h"

#include "device/aside.h"
#include "device/devices.h"
#include "device/physical.h"

namespace gcr {
namespace device {
namespace {

constexpr uint64_t kPiece = 4ull << 20;  // bytes of host memory, where a driver copies no other way

Result copy_by_host(const DeviceOps& ops, uint64_t to, uint64_t from, uint64_t size) {
    void* host = malloc(kPiece);
    if (host == nullptr) return ops.out_of_memory;
    Result result = kSuccess;
    for (uint64_t done = 0; done < size && result == kSuccess; done += kPiece) {
        uint64_t length = size - done < kPiece ? size - done : kPiece;
        result = ops.copy_to_host(host, from + done, length);
        if (result == kSuccess) result = ops.copy_to_device(to + done, host, length);
    }
    free(host);
    return result;
}

Result copy(const DeviceOps& ops, uint64_t to, uint64_t from, uint64_t size) {
    return ops.copy_within != nullptr ? ops.copy_within(to, from, size) : copy_by_host(ops, to, from, size);
}

Result copy_bytes(const State& state, const Handle& handle, uint64_t fresh) {
    const DeviceOps& ops = *state.ops;
    Aside target(ops, handle, fresh);
    if (target.result() != kSuccess) return target.result();
    if (is_read_in_place(state, handle)) return copy(ops, target.address(), handle.mappings->key, handle.size);
    Aside source(ops, handle, handle.real);
    return source.result() != kSuccess ? source.result() : copy(ops, target.address(), source.address(), handle.size);
}

Result put(const DeviceOps& ops, const Mapping& mapping, uint64_t real) {
    Result result = ops.map(mapping.key, mapping.size, mapping.offset, real);
    if (result != kSuccess) return result;
    result = ops.set_access(mapping.key, mapping.size, mapping.read, mapping.write);
    if (result != kSuccess) ops.unmap(mapping.key, mapping.size);
    return result;
}

// How far it came: a mapping that could not be moved lies where it did, or, `lost`, nowhere.
struct Moved {
    Result result = kSuccess;
    bool lost = false;
};

Moved move_one(const DeviceOps& ops, const Mapping& mapping, uint64_t from, uint64_t to) {
    Moved moved{ops.unmap(mapping.key, mapping.size)};
    if (moved.result != kSuccess) return moved;
    moved.result = put(ops, mapping, to);
    if (moved.result != kSuccess) moved.lost = put(ops, mapping, from) != kSuccess;
    return moved;
}

// All of them, or none.
Moved move_mappings(const DeviceOps& ops, const Handle& handle, uint64_t to) {
    Moved moved;
    const Mapping* mapping = handle.mappings;
    while (mapping != nullptr && (moved = move_one(ops, *mapping, handle.real, to)).result == kSuccess)
        mapping = mapping->sibling;
    if (mapping == nullptr) return moved;
    for (const Mapping* done = handle.mappings; done != mapping; done = done->sibling) {
        Moved back = move_one(ops, *done, to, handle.real);
        moved.lost = moved.lost || back.result != kSuccess;
    }
    return moved;
}

Handle* find_kept(State& state, uint64_t id) {
    Guard guard(state.lock);
    Handle* handle = state.handles.find(id);
    return handle != nullptr && coverable(*handle) && !handle->released ? handle : nullptr;
}

Failure make(State& state, const Handle& handle, Physical* made) {
    Result result = create_once(state, handle.size, handle.asked, 0, made);
    if (result == state.ops->out_of_memory)
        return {wire::kNoRoom, result, "there is no room on the device to make memory anew"};
    if (result != kSuccess) return {wire::kDriver, result, "memory could not be made anew"};
    if (made->exportable) return {};
    state.ops->release(made->real);
    return {wire::kRefused, 0, "the driver makes no memory of this kind that can leave the process"};
}

}  // namespace

Failure rehome(State& state, uint64_t id, Tally* tally) {
    Handle* handle = find_kept(state, id);
    if (handle == nullptr) return {wire::kUnknownHandle, 0, "no such memory is here"};
    if (!handle->kept) return {};
    if (handle->loans != nullptr) return {wire::kRefused, 0, "other processes hold memory that is to be made anew"};
    Current current(state, handle->device);
    Physical made{};
    Failure failure = make(state, *handle, &made);
    if (failure) return failure;
    Result copied = copy_bytes(state, *handle, made.real);
    Moved moved = copied == kSuccess ? move_mappings(*state.ops, *handle, made.real) : Moved{copied};
    if (moved.lost) return {wire::kDriver, moved.result, "failed, and so did mapping again", state.ops->names.unmap};
    bool done = moved.result == kSuccess;
    state.ops->release(done ? handle->real : made.real);
    if (!done) return {wire::kDriver, moved.result, "memory could not be made anew; every byte is where it was"};
    handle->real = made.real;
    handle->kept = false;
    handle->exported = false;  // so that it is not handed over before a descriptor of it has left
    tally->handles++;
    tally->bytes += handle->size;
    return {};
}

}  // namespace device
}  // namespace gcr
