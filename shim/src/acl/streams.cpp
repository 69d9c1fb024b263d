// SPDX-License-Identifier: Apache-2.0
//
// Streams, by which a stuck quiesce is named, and captures on them, which delay it.
#include "acl/streams.h"

#include "acl/contexts.h"
#include "device/streams.h"
#include "hooks/acl_calls.h"

namespace gcr {
namespace acl {
namespace {

using device::FoundStream;
using device::stream_from;

// Named by its handle alone: no mode forbids an allocation, no stream is a thread's own.
device::CapturedStream named(aclrtStream stream) {
    return {key_of(stream), false, false};
}

template <typename Begin>
aclError begin_capture(aclrtStream stream, Begin call) {
    return state.captures.begin(
        state.settling, named(stream), device::kCaptureRelaxed, [] { return uint64_t{0}; }, call);
}

aclError created(aclError result, const aclrtStream* handle) {
    if (result != ACL_SUCCESS) return result;
    aclrtContext context = nullptr;
    real::aclrtGetCurrentContext(&context);
    device::record_stream(state, key_of(*handle), key_of(context), current_device());
    return result;
}

bool busy(aclrtStream stream) {
    aclrtStreamStatus status = ACL_STREAM_STATUS_COMPLETE;
    return real::aclrtStreamQuery(stream, &status) == ACL_SUCCESS && status == ACL_STREAM_STATUS_NOT_READY;
}

}  // namespace

// A stream that is destroyed between the look and the query is answered with an error.
uint32_t stuck_streams(wire::StuckRecord* records, uint32_t limit) {
    uint32_t count = 0;
    for (FoundStream at = stream_from(state, 0); at.found && count < limit; at = stream_from(state, at.key + 1)) {
        PinnedContext context(pin_context(pointer_at(at.owner)));
        if (context.handle() == nullptr) continue;
        CurrentContext scope(context.handle());
        if (!busy(pointer_at(at.key))) continue;
        records[count++] = {at.key, at.owner, static_cast<uint32_t>(at.device), 0};
    }
    return count;
}

uint32_t captures_in_progress() {
    return state.captures.count();
}

// ---- the program's calls ------------------------------------------------------------------------------------------

aclError on_aclrtCreateStream(aclrtStream* stream) {
    return created(real::aclrtCreateStream(stream), stream);
}

aclError on_aclrtCreateStreamWithConfig(aclrtStream* stream, uint32_t priority, uint32_t flag) {
    return created(real::aclrtCreateStreamWithConfig(stream, priority, flag), stream);
}

aclError on_aclrtCreateStreamV2(aclrtStream* stream, const void* handle) {
    return created(real::aclrtCreateStreamV2(stream, handle), stream);
}

aclError on_aclrtDestroyStream(aclrtStream stream) {
    return device::destroy_stream(state, key_of(stream), [&] { return real::aclrtDestroyStream(stream); });
}

aclError on_aclrtDestroyStreamForce(aclrtStream stream) {
    return device::destroy_stream(state, key_of(stream), [&] { return real::aclrtDestroyStreamForce(stream); });
}

aclError on_aclmdlRICaptureBegin(aclrtStream stream, int32_t mode) {
    return begin_capture(stream, [&] { return real::aclmdlRICaptureBegin(stream, mode); });
}

aclError on_aclmdlRICaptureToModelRIBegin(aclrtStream stream, void* modelRI, int32_t mode) {
    return begin_capture(stream, [&] { return real::aclmdlRICaptureToModelRIBegin(stream, modelRI, mode); });
}

// A failed end leaves the capture invalid, and ended.
aclError on_aclmdlRICaptureEnd(aclrtStream stream, void* modelRI) {
    return state.captures.end(
        named(stream), [] { return false; }, [&] { return real::aclmdlRICaptureEnd(stream, modelRI); });
}

}  // namespace acl
}  // namespace gcr
