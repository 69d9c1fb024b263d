// SPDX-License-Identifier: Apache-2.0
#include "device/copyout.h"

#include "device/devices.h"

namespace gcr {
namespace device {
namespace {

// A handle once more, whole, at an address of ours, for the length of a copy.
class Aside {
  public:
    Aside(const DeviceOps& ops, const Handle& handle) : ops_(ops), size_(handle.size) {
        result_ = ops_.reserve(size_, 0, &address_);
        if (result_ != kSuccess) return;
        reserved_ = true;
        result_ = ops_.map(address_, size_, 0, handle.real);
        if (result_ != kSuccess) return;
        mapped_ = true;
        result_ = ops_.set_access(address_, size_, device_bit(handle.device), device_bit(handle.device));
    }
    ~Aside() {
        if (mapped_) ops_.unmap(address_, size_);
        if (reserved_) ops_.give_back(address_, size_);
    }
    Aside(const Aside&) = delete;
    Aside& operator=(const Aside&) = delete;
    Result result() const { return result_; }
    uint64_t address() const { return address_; }

  private:
    const DeviceOps& ops_;
    uint64_t size_;
    uint64_t address_ = 0;
    Result result_;
    bool reserved_ = false;
    bool mapped_ = false;
};

const Handle* find_here(State& state, uint64_t id, uint64_t offset, uint64_t size) {
    Guard guard(state.lock);
    const Handle* handle = state.handles.find(id);
    if (handle == nullptr || !coverable(*handle) || (handle->released && !handle->imported)) return nullptr;
    return offset <= handle->size && size <= handle->size - offset ? handle : nullptr;
}

Failure copy_at(const State& state, Direction direction, uint64_t address, void* host, uint64_t size) {
    Result result = direction == Direction::kOut ? state.ops->copy_to_host(host, address, size)
                                                 : state.ops->copy_to_device(address, host, size);
    if (result != kSuccess) return {wire::kDriver, result, "a copy failed"};
    return {};
}

}  // namespace

Failure copy_piece(State& state, Direction direction, uint64_t id, uint64_t offset, void* host, uint64_t size) {
    const Handle* handle = find_here(state, id, offset, size);
    if (handle == nullptr) return {wire::kUnknownHandle, 0, "no such piece of memory is here"};
    Current current(state, handle->device);
    bool in_place = (state.ops->quirks & kMapsWithAccess) != 0 && handle->mappings != nullptr;
    if (in_place) return copy_at(state, direction, handle->mappings->key + offset, host, size);
    Aside aside(*state.ops, *handle);
    if (aside.result() != kSuccess) return {wire::kDriver, aside.result(), "memory could not be mapped to be copied"};
    return copy_at(state, direction, aside.address() + offset, host, size);
}

}  // namespace device
}  // namespace gcr
