// SPDX-License-Identifier: Apache-2.0
//
// The HIP half's State: what device::State keeps, and the devices and streams it belongs to. A device owns its memory:
// HIP's contexts are its devices, one each, made when something first needs it.
#ifndef GCR_HIP_STATE_H
#define GCR_HIP_STATE_H

#include "abi/hip.h"
#include "core/vendor.h"
#include "device/state.h"
#include "hooks/hip_real.h"

namespace gcr {
namespace hip {

using namespace hip_abi;

using device::Allocation;
using device::Handle;
using device::kCovered;
using device::kMaxDevices;
using device::make;
using device::Mapping;
using device::Owner;
using device::Properties;

struct State : device::State {
    using device::State::State;
    std::atomic<Owner*> owners[kMaxDevices] = {};  // by ordinal; made at the first use, never destroyed
    std::atomic<uint32_t> used{0};  // device mask: those the program made current, or allocates on
};

extern State state;

inline uint64_t key_of(const void* pointer) {
    return reinterpret_cast<uint64_t>(pointer);
}
inline void* pointer_at(uint64_t address) {
    return reinterpret_cast<void*>(address);
}

// A thread has a device current for as long as this lives, and the one before it afterwards.
class CurrentDevice {
  public:
    explicit CurrentDevice(int device) {
        if (real::hipGetDevice(&before_) != hipSuccess) before_ = -1;
        changed_ = device != before_ && real::hipSetDevice(device) == hipSuccess;
    }
    ~CurrentDevice() {
        if (changed_ && before_ >= 0) real::hipSetDevice(before_);
    }
    CurrentDevice(const CurrentDevice&) = delete;
    CurrentDevice& operator=(const CurrentDevice&) = delete;

  private:
    int before_ = -1;
    bool changed_;
};

}  // namespace hip
}  // namespace gcr

#endif  // GCR_HIP_STATE_H
