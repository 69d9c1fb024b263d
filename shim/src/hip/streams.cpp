// SPDX-License-Identifier: Apache-2.0
#include "hip/streams.h"

#include "device/devices.h"
#include "device/pools.h"
#include "device/streams.h"
#include "hip/captures.h"
#include "hip/devices.h"
#include "hip/stream_order.h"
#include "hooks/hip_calls.h"

namespace gcr {
namespace hip {
namespace {

using device::FoundStream;
using device::stream_from;

hipError_t recorded(hipError_t result, hipStream_t* stream) {
    if (result != hipSuccess) return result;
    Owner* owner = current_owner();
    int device = owner == nullptr ? 0 : owner->device;
    device::record_stream(state, key_of(*stream), static_cast<uint64_t>(device), device);
    return result;
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
    for (FoundStream at = stream_from(state, 0); at.found && count < limit; at = stream_from(state, at.key + 1)) {
        CurrentDevice scope(at.device);
        if (is_busy(static_cast<hipStream_t>(pointer_at(at.key))))
            records[count++] = {at.key, 0, static_cast<uint32_t>(at.device), 0};
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
    uint64_t id = 0;
    bool left = device::leave_stream(state, key_of(handle), &id);
    hipError_t result = device::destroy_stream(state, key_of(handle), [&] { return real::hipStreamDestroy(handle); });
    if (left && result != hipSuccess) device::return_to_stream(state, id);
    return result;
}

}  // namespace hip
}  // namespace gcr
