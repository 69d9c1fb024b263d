// SPDX-License-Identifier: Apache-2.0
//
// The vendor's devices: what is asked of the driver once, and how a thread of ours comes to call it.
#ifndef GCR_DEVICE_DEVICES_H
#define GCR_DEVICE_DEVICES_H

#include "device/state.h"

namespace gcr {
namespace device {

Facts facts_of(State& state, int device);   // all zero for a device that is none
void learn_devices(State& state);           // count, uuids and facts, once; by each thread of ours when it begins

bool uuid_of(State& state, int device, uint8_t uuid[16]);  // as kStatus says it; false: not learnt yet

// A restore onto other devices: the driver puts one in another's place, and need not say so.
void move_device(State& state, const uint8_t old_uuid[16], const uint8_t new_uuid[16]);  // once settled
void settle_moves(State& state, bool keep);

bool all_export(const State& state);        // as far as is known, without asking the driver
// And takes descriptors in: a driver that brought the process to a device that was hidden from it does not.
bool exports(const State& state, int device);

// A thread of ours works with memory of a device for as long as this lives.
class Current {
  public:
    explicit Current(const State& state, int device = 0) : ops_(state.ops) { ops_->enter(device, &entered_); }
    ~Current() { ops_->leave(entered_); }
    Current(const Current&) = delete;
    Current& operator=(const Current&) = delete;

  private:
    const DeviceOps* ops_;
    Entered entered_{};
};

inline uint64_t round_up(uint64_t value, uint64_t unit) {
    return (value + unit - 1) / unit * unit;
}
inline uint32_t device_bit(int device) {
    return device < 0 || device >= kMaxDevices ? 0 : 1u << device;
}

}  // namespace device
}  // namespace gcr

#endif  // GCR_DEVICE_DEVICES_H
