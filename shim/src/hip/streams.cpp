// SPDX-License-Identifier: Apache-2.0
#include "hip/streams.h"

#include "device/devices.h"
#include "hip/captures.h"
#include "hip/devices.h"
#include "hooks/hip_calls.h"

namespace gcr {
namespace hip {
namespace {

void record(hipStream_t handle) {
    Stream* stream = make<Stream>();
    Owner* owner = current_owner();
    if (stream == nullptr) return;
    stream->key = key_of(handle);
    stream->device = owner == nullptr ? 0 : owner->device;
    Guard guard(state.lock);
    if (!state.streams.insert(stream)) free(stream);
}

hipError_t recorded(hipError_t result, hipStream_t* stream) {
    if (result == hipSuccess) record(*stream);
    return result;
}

Stream* take(hipStream_t handle) {
    Guard guard(state.lock);
    Stream* stream = state.streams.find(key_of(handle));
    if (stream != nullptr) state.streams.erase(stream);
    return stream;
}

void put_back(Stream* stream) {
    Guard guard(state.lock);
    if (!state.streams.insert(stream)) free(stream);
}

struct NextStream {
    bool found;
    uint64_t key;
    int device;
};

NextStream stream_from(uint64_t key) {
    Guard guard(state.lock);
    Stream* stream = state.streams.at_least(key);
    if (stream == nullptr) return {};
    return {true, stream->key, stream->device};
}

template <typename Visit>
void each_used_device(Visit visit) {
    uint32_t used = state.used.load(std::memory_order_relaxed);
    for (int device = 0; device < kMaxDevices; device++)
        if ((used & device::device_bit(device)) != 0) visit(device);
}

bool is_busy(hipStream_t stream) {
    return is_capturing(stream, false) || real::hipStreamQuery(stream) == hipErrorNotReady;
}

}  // namespace

void forget_streams_of(int device) {
    Guard guard(state.lock);
    for (Stream* stream = state.streams.first(); stream != nullptr;) {
        Stream* next = state.streams.after(stream);
        if (stream->device == device) {
            state.streams.erase(stream);
            free(stream);
        }
        stream = next;
    }
}

Failure synchronize_devices() {
    Failure failure;
    each_used_device([&](int device) {
        if (failure) return;
        CurrentDevice scope(device);
        hipError_t result = real::hipDeviceSynchronize();
        if (result != hipSuccess) failure = {wire::kDriver, result, "failed", "hipDeviceSynchronize"};
    });
    return failure;
}

// A stream that is destroyed between the look and the query is answered with an error, not with "not ready".
uint32_t stuck_streams(wire::StuckRecord* records, uint32_t limit) {
    uint32_t count = 0;
    for (NextStream stream = stream_from(0); stream.found && count < limit; stream = stream_from(stream.key + 1)) {
        CurrentDevice scope(stream.device);
        if (is_busy(static_cast<hipStream_t>(pointer_at(stream.key))))
            records[count++] = {stream.key, 0, static_cast<uint32_t>(stream.device), 0};
    }
    each_used_device([&](int device) {
        if (count == limit || captures_in_progress() > 0) return;  // asking would break a capture
        CurrentDevice scope(device);
        if (real::hipStreamQuery(nullptr) == hipErrorNotReady)
            records[count++] = {0, 0, static_cast<uint32_t>(device), 0};
    });
    return count;
}

hipError_t on_hipStreamCreate(hipStream_t* stream) {
    return recorded(real::hipStreamCreate(stream), stream);
}

hipError_t on_hipStreamCreateWithFlags(hipStream_t* stream, unsigned int flags) {
    return recorded(real::hipStreamCreateWithFlags(stream, flags), stream);
}

hipError_t on_hipStreamCreateWithPriority(hipStream_t* stream, unsigned int flags, int priority) {
    return recorded(real::hipStreamCreateWithPriority(stream, flags, priority), stream);
}

hipError_t on_hipExtStreamCreateWithCUMask(hipStream_t* stream, uint32_t cuMaskSize, const uint32_t* cuMask) {
    return recorded(real::hipExtStreamCreateWithCUMask(stream, cuMaskSize, cuMask), stream);
}

hipError_t on_hipStreamDestroy(hipStream_t handle) {
    Stream* stream = take(handle);  // before the runtime's: the next stream may have the same handle
    hipError_t result = real::hipStreamDestroy(handle);
    if (result == hipSuccess) {
        forget_captures_on(handle);
        free(stream);
    } else if (stream != nullptr) {
        put_back(stream);
    }
    return result;
}

}  // namespace hip
}  // namespace gcr
