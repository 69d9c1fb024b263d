// SPDX-License-Identifier: Apache-2.0
#include "hip/stream_order.h"

#include "hip/captures.h"

namespace gcr {
namespace hip {
namespace {

hipStream_t handle_of(const StreamName& stream) {
    return static_cast<hipStream_t>(pointer_at(stream.handle));
}

hipEvent_t event_of(uint64_t event) {
    return static_cast<hipEvent_t>(pointer_at(event));
}

template <typename Call>
bool on_device_of(const StreamName& stream, Call call) {
    CurrentDevice scope(static_cast<int>(stream.owner));
    RelaxedMode relaxed;
    return call() == hipSuccess;
}

}  // namespace

bool streams_have_ids() {
    return real::has_hipStreamGetId() && real::has_hipStreamGetDevice();
}

bool name_stream(hipStream_t stream, StreamName* name) {
    unsigned long long id = 0;
    int device = -1;
    if (real::hipStreamGetId(stream, &id) != hipSuccess) return false;
    if (real::hipStreamGetDevice(stream, &device) != hipSuccess) return false;
    *name = {key_of(stream), static_cast<uint64_t>(device), id, false, key_of(stream) == HIP_STREAM_PER_THREAD};
    return true;
}

bool capturing(const StreamName& stream) {
    return may_capture(handle_of(stream));
}

bool idle(const StreamName& stream) {
    return on_device_of(stream, [&] { return real::hipStreamQuery(handle_of(stream)); });
}

bool mark(const StreamName& stream, uint64_t* event) {
    return on_device_of(stream, [&] {
        hipEvent_t made = event_of(*event);
        hipError_t result = made != nullptr ? hipSuccess : real::hipEventCreateWithFlags(&made, hipEventDisableTiming);
        if (result != hipSuccess) return result;
        *event = key_of(made);
        return real::hipEventRecord(made, handle_of(stream));
    });
}

bool passed(const StreamName& stream, uint64_t event) {
    return on_device_of(stream, [&] { return real::hipEventQuery(event_of(event)); });
}

bool follow(const StreamName& stream, const StreamName&, uint64_t event) {
    return on_device_of(stream, [&] { return real::hipStreamWaitEvent(handle_of(stream), event_of(event), 0); });
}

void forget_event(const StreamName& stream, uint64_t event) {
    on_device_of(stream, [&] { return real::hipEventDestroy(event_of(event)); });
}

}  // namespace hip
}  // namespace gcr
