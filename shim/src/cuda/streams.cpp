// SPDX-License-Identifier: Apache-2.0
#include "cuda/streams.h"

#include "core/gate.h"
#include "cuda/captures.h"
#include "cuda/driver.h"
#include "hooks/cuda_calls.h"

namespace gcr {
namespace cuda {
namespace {

void record(CUstream handle) {
    Stream* stream = make<Stream>();
    if (stream == nullptr) return;
    stream->key = reinterpret_cast<uint64_t>(handle);
    real::cuCtxGetCurrent(&stream->context);
    real::cuCtxGetDevice(&stream->device);
    Guard guard(state.lock);
    if (!state.streams.insert(stream)) free(stream);
}

Stream* take(CUstream handle) {
    Guard guard(state.lock);
    Stream* stream = state.streams.find(reinterpret_cast<uint64_t>(handle));
    if (stream != nullptr) state.streams.erase(stream);
    return stream;
}

void put_back(Stream* stream) {
    Guard guard(state.lock);
    if (!state.streams.insert(stream)) free(stream);
}

// A copy: contexts may come and go while the driver is called.
struct Contexts {
    static constexpr uint32_t kLimit = 64;
    uint32_t count = 0;
    CUcontext handles[kLimit];
};

Contexts all_contexts() {
    Contexts all;
    Guard guard(state.lock);
    for (const Context* context : state.contexts)
        if (all.count < Contexts::kLimit) all.handles[all.count++] = context->handle;
    return all;
}

struct NextStream {
    bool found;
    uint64_t key;
    CUcontext context;
    CUdevice device;
};

NextStream stream_from(uint64_t key) {
    Guard guard(state.lock);
    Stream* stream = state.streams.at_least(key);
    if (stream == nullptr) return {};
    return {true, stream->key, stream->context, stream->device};
}

void report_default_stream(CUcontext handle, wire::StuckRecord* records, uint32_t* count) {
    PinnedContext context(handle);
    if (context.handle() == nullptr || captures_in_progress() > 0) return;  // asking would break a capture
    CurrentContext scope(handle);
    if (real::cuStreamQuery(nullptr) != CUDA_ERROR_NOT_READY) return;
    records[(*count)++] = {0, reinterpret_cast<uint64_t>(handle), static_cast<uint32_t>(context.device()), 0};
}

}  // namespace

void forget_streams_of(CUcontext context) {
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

Failure synchronize_contexts() {
    Contexts all = all_contexts();
    for (uint32_t i = 0; i < all.count; i++) {
        PinnedContext context(all.handles[i]);
        if (context.handle() == nullptr) continue;  // destroyed meanwhile
        CurrentContext scope(context.handle());
        CUresult result = real::cuCtxSynchronize();
        if (result != CUDA_SUCCESS) return {wire::kDriver, result, "failed", "cuCtxSynchronize"};
    }
    return {};
}

// A stream that is destroyed between the look and the query is answered with an error, not with "not ready".
uint32_t stuck_streams(wire::StuckRecord* records, uint32_t limit) {
    uint32_t count = 0;
    for (NextStream stream = stream_from(0); stream.found && count < limit; stream = stream_from(stream.key + 1)) {
        PinnedContext context(stream.context);
        if (context.handle() == nullptr) continue;
        CurrentContext scope(context.handle());
        CUstream handle = reinterpret_cast<CUstream>(stream.key);
        if (!is_capturing(handle, false) && real::cuStreamQuery(handle) != CUDA_ERROR_NOT_READY) continue;
        records[count++] = {stream.key, reinterpret_cast<uint64_t>(stream.context),
                            static_cast<uint32_t>(stream.device), 0};
    }
    Contexts all = all_contexts();
    for (uint32_t i = 0; i < all.count && count < limit; i++) report_default_stream(all.handles[i], records, &count);
    return count;
}

CUresult on_cuStreamCreate(CUstream* phStream, unsigned int Flags) {
    CUresult result = real::cuStreamCreate(phStream, Flags);
    if (result == CUDA_SUCCESS) record(*phStream);
    return result;
}

CUresult on_cuStreamCreateWithPriority(CUstream* phStream, unsigned int flags, int priority) {
    CUresult result = real::cuStreamCreateWithPriority(phStream, flags, priority);
    if (result == CUDA_SUCCESS) record(*phStream);
    return result;
}

CUresult on_cuStreamDestroy_v2(CUstream hStream) {
    Stream* stream = take(hStream);  // before the driver's: the next stream may have the same handle
    CUresult result = real::cuStreamDestroy_v2(hStream);
    if (result == CUDA_SUCCESS) {
        forget_captures_on(hStream);
        free(stream);
    } else if (stream != nullptr) {
        put_back(stream);
    }
    return result;
}

}  // namespace cuda
}  // namespace gcr
