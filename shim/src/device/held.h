// SPDX-License-Identifier: Apache-2.0
//
// Virtual handles, as a program's calls use them. No function here is called with state.lock held.
#ifndef GCR_DEVICE_HELD_H
#define GCR_DEVICE_HELD_H

#include "device/state.h"

namespace gcr {
namespace device {

// Gives the program an id for what the driver made; on failure the driver has it back.
Result give_id(State& state, uint64_t made, uint64_t size, const Properties& asked, Reason reason, uint64_t* id);

// The program imported memory that it holds already: the driver gives the same handle once more, and so do we.
bool give_same_id(State& state, uint64_t made, uint64_t* id);

// The program gives a reference back. False: not one of ours, or no longer.
bool release_reference(State& state, uint64_t id, Result* result);

bool properties_of(State& state, uint64_t id, Properties* asked);  // false: not one of ours

// A reference for the length of a driver call: another thread may release the last one meanwhile.
class Held {
  public:
    Held(State& state, uint64_t id);
    ~Held();
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;
    Handle* get() const { return handle_; }  // null: not one of ours
    uint64_t real() const { return handle_ == nullptr ? as_passed_on(id_) : handle_->real; }

  private:
    State& state_;
    uint64_t id_;
    Handle* handle_;
};

}  // namespace device
}  // namespace gcr

#endif  // GCR_DEVICE_HELD_H
