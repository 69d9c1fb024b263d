// SPDX-License-Identifier: Apache-2.0
#include "device/streams.h"

namespace gcr {
namespace device {

void record_stream(State& state, uint64_t handle, uint64_t owner, int device) {
    Stream* stream = make<Stream>();
    if (stream == nullptr) return;
    stream->key = handle;
    stream->owner = owner;
    stream->device = device;
    put_back_stream(state, stream);
}

void forget_streams_of(State& state, uint64_t owner) {
    Guard guard(state.lock);
    for (Stream* stream = state.streams.first(); stream != nullptr;) {
        Stream* next = state.streams.after(stream);
        if (stream->owner == owner) {
            state.streams.erase(stream);
            free(stream);
        }
        stream = next;
    }
}

FoundStream stream_from(State& state, uint64_t key) {
    Guard guard(state.lock);
    Stream* stream = state.streams.at_least(key);
    if (stream == nullptr) return {};
    return {true, stream->key, stream->owner, stream->device};
}

Stream* take_stream(State& state, uint64_t handle) {
    Guard guard(state.lock);
    Stream* stream = state.streams.find(handle);
    if (stream != nullptr) state.streams.erase(stream);
    return stream;
}

void put_back_stream(State& state, Stream* stream) {
    if (stream == nullptr) return;
    Guard guard(state.lock);
    if (!state.streams.insert(stream)) free(stream);
}

}  // namespace device
}  // namespace gcr
