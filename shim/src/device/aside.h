// SPDX-License-Identifier: Apache-2.0
//
// Physical memory once more, whole, at an address of ours, for the length of a copy. The caller stands in a Current.
#ifndef GCR_DEVICE_ASIDE_H
#define GCR_DEVICE_ASIDE_H

#include "device/devices.h"
#include "device/state.h"

namespace gcr {
namespace device {

class Aside {
  public:
    // `real`: memory of the handle's size and device, its own or other.
    Aside(const DeviceOps& ops, const Handle& handle, uint64_t real) : ops_(ops), size_(handle.size) {
        result_ = ops_.reserve(size_, 0, &address_);
        if (result_ != kSuccess) return;
        reserved_ = true;
        result_ = ops_.map(address_, size_, 0, real);
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

// The program has all of it mapped, and a second mapping may not be had.
inline bool is_read_in_place(const State& state, const Handle& handle) {
    return (state.ops->quirks & kMapsWithAccess) != 0 && handle.mappings != nullptr;
}

}  // namespace device
}  // namespace gcr

#endif  // GCR_DEVICE_ASIDE_H
