// SPDX-License-Identifier: Apache-2.0
//
// The streams that the program made, by which a stuck quiesce is named. An owner is whose end is theirs (CUDA, ACL: a
// context; HIP: a device).
#ifndef GCR_DEVICE_STREAMS_H
#define GCR_DEVICE_STREAMS_H

#include "device/state.h"

namespace gcr {
namespace device {

void record_stream(State& state, uint64_t handle, uint64_t owner, int device);
void forget_streams_of(State& state, uint64_t owner);

// A copy: streams may come and go while the driver is called.
struct FoundStream {
    bool found;
    uint64_t key;
    uint64_t owner;
    int device;
};
FoundStream stream_from(State& state, uint64_t key);  // the first whose handle is not less

Stream* take_stream(State& state, uint64_t handle);  // null: not one of those recorded
void put_back_stream(State& state, Stream* stream);  // null: does nothing

// Forgotten before the driver destroys it: the next stream may have the same handle.
template <typename Destroy>
auto destroy_stream(State& state, uint64_t handle, Destroy call) {
    Stream* stream = take_stream(state, handle);
    auto result = call();
    if (result == 0) {
        state.captures.forget_on(handle);
        free(stream);
    } else {
        put_back_stream(state, stream);
    }
    return result;
}

}  // namespace device
}  // namespace gcr

#endif  // GCR_DEVICE_STREAMS_H
