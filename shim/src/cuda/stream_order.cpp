// SPDX-License-Identifier: Apache-2.0
#include "cuda/stream_order.h"

#include "cuda/captures.h"
#include "cuda/driver.h"

namespace gcr {
namespace cuda {
namespace {

CUstream handle_of(const StreamName& stream) {
    return reinterpret_cast<CUstream>(stream.handle);
}

CUevent event_of(uint64_t event) {
    return reinterpret_cast<CUevent>(event);
}

// Events and streams of a context that is being destroyed are left to it.
template <typename Call>
bool in_context_of(const StreamName& stream, Call call) {
    PinnedContext context(reinterpret_cast<CUcontext>(stream.owner));
    if (context.handle() == nullptr) return false;
    CurrentContext scope(context.handle());
    RelaxedMode relaxed;
    return call() == CUDA_SUCCESS;
}

}  // namespace

bool streams_have_ids() {
    return real::has_cuStreamGetId() && real::has_cuStreamGetCtx();
}

bool name_stream(CUstream stream, bool per_thread, StreamName* name) {
    unsigned long long id = 0;
    CUcontext context = nullptr;
    CUresult asked = per_thread ? real::cuStreamGetId_ptsz(stream, &id) : real::cuStreamGetId(stream, &id);
    if (asked != CUDA_SUCCESS) return false;
    asked = per_thread ? real::cuStreamGetCtx_ptsz(stream, &context) : real::cuStreamGetCtx(stream, &context);
    if (asked != CUDA_SUCCESS) return false;
    bool own = stream == per_thread_stream() || (stream == nullptr && per_thread);
    *name = {reinterpret_cast<uint64_t>(stream), reinterpret_cast<uint64_t>(context), id, per_thread, own};
    return true;
}

bool capturing(const StreamName& stream) {
    return may_capture(handle_of(stream), stream.per_thread);
}

bool idle(const StreamName& stream) {
    return in_context_of(stream, [&] {
        return stream.per_thread ? real::cuStreamQuery_ptsz(handle_of(stream)) : real::cuStreamQuery(handle_of(stream));
    });
}

bool mark(const StreamName& stream, uint64_t* event) {
    return in_context_of(stream, [&] {
        CUevent made = event_of(*event);
        CUresult result = made != nullptr ? CUDA_SUCCESS : real::cuEventCreate(&made, CU_EVENT_DISABLE_TIMING);
        if (result != CUDA_SUCCESS) return result;
        *event = reinterpret_cast<uint64_t>(made);
        return stream.per_thread ? real::cuEventRecord_ptsz(made, handle_of(stream))
                                 : real::cuEventRecord(made, handle_of(stream));
    });
}

bool passed(const StreamName& stream, uint64_t event) {
    return in_context_of(stream, [&] { return real::cuEventQuery(event_of(event)); });
}

bool follow(const StreamName& stream, const StreamName&, uint64_t event) {
    return in_context_of(stream, [&] {
        return stream.per_thread ? real::cuStreamWaitEvent_ptsz(handle_of(stream), event_of(event), 0)
                                 : real::cuStreamWaitEvent(handle_of(stream), event_of(event), 0);
    });
}

void forget_event(const StreamName& stream, uint64_t event) {
    in_context_of(stream, [&] { return real::cuEventDestroy_v2(event_of(event)); });
}

}  // namespace cuda
}  // namespace gcr
