// SPDX-License-Identifier: Apache-2.0
//
// Streams, by which a stuck quiesce is named, and captures on them, which delay it.
#include "acl/streams.h"

#include "acl/contexts.h"
#include "core/gate.h"
#include "hooks/acl_calls.h"

namespace gcr {
namespace acl {
namespace {

Lock lock;  // of `captures`
Array<aclrtStream> captures;
std::atomic<uint32_t> capture_count{0};  // captures.size(), readable without the lock

template <typename Matches>
void remove_captures(Matches matches) {
    Guard guard(lock);
    for (size_t i = captures.size(); i-- > 0;)
        if (matches(captures[i])) captures.swap_out(i);
    capture_count.store(static_cast<uint32_t>(captures.size()), std::memory_order_seq_cst);
}

// The count grows while the call is still in flight: an agent that finds no call in flight finds the capture.
template <typename Begin>
aclError begin_capture(aclrtStream stream, Begin call) {
    wait_to_capture();
    aclError result = call();
    if (result != ACL_SUCCESS) return result;
    Guard guard(lock);
    captures.push(stream);
    capture_count.store(static_cast<uint32_t>(captures.size()), std::memory_order_seq_cst);
    return result;
}

aclError created(aclError result, const aclrtStream* handle) {
    if (result != ACL_SUCCESS) return result;
    Stream* stream = make<Stream>();
    if (stream == nullptr) return result;
    stream->key = key_of(*handle);
    stream->device = current_device();
    real::aclrtGetCurrentContext(&stream->context);
    Guard guard(state.lock);
    if (!state.streams.insert(stream)) free(stream);
    return result;
}

Stream* take(aclrtStream handle) {
    Guard guard(state.lock);
    Stream* stream = state.streams.find(key_of(handle));
    if (stream != nullptr) state.streams.erase(stream);
    return stream;
}

// Forgotten before the runtime destroys it: the next stream may have the same handle.
template <typename Destroy>
aclError destroy(aclrtStream handle, Destroy call) {
    Stream* stream = take(handle);
    aclError result = call();
    if (result == ACL_SUCCESS) {
        if (captures_in_progress() > 0) remove_captures([&](aclrtStream each) { return each == handle; });
        free(stream);
    } else if (stream != nullptr) {
        Guard guard(state.lock);
        if (!state.streams.insert(stream)) free(stream);
    }
    return result;
}

struct NextStream {
    bool found;
    uint64_t key;
    aclrtContext context;
    int device;
};

NextStream stream_from(uint64_t key) {
    Guard guard(state.lock);
    Stream* stream = state.streams.at_least(key);
    if (stream == nullptr) return {};
    return {true, stream->key, stream->context, stream->device};
}

bool busy(aclrtStream stream) {
    aclrtStreamStatus status = ACL_STREAM_STATUS_COMPLETE;
    return real::aclrtStreamQuery(stream, &status) == ACL_SUCCESS && status == ACL_STREAM_STATUS_NOT_READY;
}

}  // namespace

void forget_streams_of(aclrtContext context) {
    Guard guard(state.lock);
    for (Stream* stream = state.streams.first(); stream != nullptr;) {
        Stream* next = state.streams.after(stream);
        if (stream->context == context) {
            state.streams.erase(stream);
            free(stream);
        }
        stream = next;
    }
}

// A stream that is destroyed between the look and the query is answered with an error.
uint32_t stuck_streams(wire::StuckRecord* records, uint32_t limit) {
    uint32_t count = 0;
    for (NextStream stream = stream_from(0); stream.found && count < limit; stream = stream_from(stream.key + 1)) {
        PinnedContext context(pin_context(stream.context));
        if (context.handle() == nullptr) continue;
        CurrentContext scope(context.handle());
        if (!busy(pointer_at(stream.key))) continue;
        records[count++] = {stream.key, key_of(stream.context), static_cast<uint32_t>(stream.device), 0};
    }
    return count;
}

uint32_t captures_in_progress() {
    return capture_count.load(std::memory_order_seq_cst);
}

Lock& capture_lock() {
    return lock;
}

void forget_captures_after_fork() {
    lock.reset_after_fork();
    captures.clear();
    capture_count.store(0, std::memory_order_seq_cst);
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
    return destroy(stream, [&] { return real::aclrtDestroyStream(stream); });
}

aclError on_aclrtDestroyStreamForce(aclrtStream stream) {
    return destroy(stream, [&] { return real::aclrtDestroyStreamForce(stream); });
}

aclError on_aclmdlRICaptureBegin(aclrtStream stream, int32_t mode) {
    return begin_capture(stream, [&] { return real::aclmdlRICaptureBegin(stream, mode); });
}

aclError on_aclmdlRICaptureToModelRIBegin(aclrtStream stream, void* modelRI, int32_t mode) {
    return begin_capture(stream, [&] { return real::aclmdlRICaptureToModelRIBegin(stream, modelRI, mode); });
}

// A failed end leaves the capture invalid, and ended.
aclError on_aclmdlRICaptureEnd(aclrtStream stream, void* modelRI) {
    aclError result = real::aclmdlRICaptureEnd(stream, modelRI);
    remove_captures([&](aclrtStream each) { return each == stream; });
    return result;
}

}  // namespace acl
}  // namespace gcr
