// SPDX-License-Identifier: Apache-2.0
//
// The other half of the shim, as little of it as the hooks need to be tested alone: a gate that counts, and on_<symbol>
// functions that say they were reached and call the driver. Never part of a shim that anybody is given.
#include <atomic>

#include "core/coverage.h"
#include "core/gate.h"
#include "core/sys.h"
#include "hooks/cuda_calls.h"
#include "hooks/cuda_real.h"
#include "hooks/hip_calls.h"
#include "hooks/hip_real.h"
#include "hooks/unclassified.h"

namespace gcr {

__thread Slot* thread_slot __attribute__((tls_model("initial-exec")));

namespace {
__thread Slot plain_slot;
std::atomic<uint32_t> notes[wire::kReasonCount];
std::atomic<uint32_t> answered;
}  // namespace

// A slot that stays fresh: every call comes by.
Slot* enter_gate_slowly(Call) {
    thread_slot = &plain_slot;
    if (plain_slot.depth.fetch_add(1) == 0) plain_slot.calls.fetch_add(1);
    return &plain_slot;
}
Slot* enter_passively_slowly() {
    thread_slot = &plain_slot;
    if (plain_slot.passive.fetch_add(1) == 0 && plain_slot.depth.load() == 0) plain_slot.calls.fetch_add(1);
    return &plain_slot;
}
Slot* enter_unless_frozen() {
    return enter_passively_slowly();
}
Slot* enter_unless_closed() {
    return enter_gate_slowly();
}
void add_uncovered(Reason reason, uint64_t) {
    notes[reason].fetch_add(1);
}

namespace cuda {

bool pools_hold_too_much() {
    return false;
}
void trim_pools() {}

uint32_t captures_in_progress() {
    return 0;
}
bool may_capture(CUstream, bool) {
    return false;
}

#define GCR_ON_ALLOCATE(symbol, parameters, arguments) \
    CUresult on_##symbol parameters {                  \
        answered.fetch_add(1);                         \
        return real::symbol arguments;                 \
    }
#define GCR_ON_CURRENT(symbol, parameters, arguments) \
    CUresult on_##symbol parameters {                 \
        return real::symbol arguments;                \
    }                                                 \
    CUresult frozen_##symbol parameters {             \
        return kUnanswered;                           \
    }
#define GCR_ON_DISCARD(symbol, parameters, arguments) \
    CUresult on_##symbol parameters {                 \
        return real::symbol arguments;                \
    }                                                 \
    CUresult put_off_##symbol parameters {            \
        return kUnanswered;                           \
    }
#define GCR_ON_LOOKUP(...)
#define GCR_ON_ENQUEUE(...)
#define GCR_ON_PASSIVE(...)
#define GCR_ON_QUERY(...)
#define GCR_ON_WAIT(...)
#define GCR_ON_REFUSE_ARRAY(...)
#define GCR_ON_REFUSE_CAPTURE(...)
#define GCR_ON_REFUSE_EXTERNAL(...)
#define GCR_ON_REFUSE_FABRIC(...)
#define GCR_ON_REFUSE_GREEN_CONTEXT(...)
#define GCR_ON_REFUSE_IPC_IMPORT(...)
#define GCR_ON_REFUSE_SHAREABLE_EXPORT(...)
#define GCR_ON_REFUSE_UNEXPORTABLE(...)
#undef GCR_HOOK
#define GCR_HOOK(symbol, base, version, stream, kind, parameters, arguments) \
    GCR_ON_##kind(symbol, parameters, arguments)
#include "hooks/cuda.def"

}  // namespace cuda

namespace hip {

__thread bool arrived = false;
void arrive() {
    arrived = true;
}
void use_device(int) {}
bool pools_hold_too_much() {
    return false;
}
void trim_pools() {}
LastError::LastError() : clean_(false) {}
hipError_t LastError::after(hipError_t result) {
    return result;
}

#define GCR_ON_SELECT(...)
#define GCR_HOOK(symbol, kind, parameters, arguments) GCR_ON_##kind(symbol, parameters, arguments)
#undef GCR_ON_ALLOCATE
#define GCR_ON_ALLOCATE(symbol, parameters, arguments) \
    hipError_t on_##symbol parameters {                \
        answered.fetch_add(1);                         \
        return real::symbol arguments;                 \
    }
#include "hooks/hip.def"

}  // namespace hip
}  // namespace gcr

// What the tests ask. Calls entered: gated, or passive, at the outermost level, by the calling thread.
extern "C" {
__attribute__((visibility("default"))) unsigned long standin_entered() {
    return gcr::plain_slot.calls.load();
}
__attribute__((visibility("default"))) unsigned standin_answered() {
    return gcr::answered.load();
}
__attribute__((visibility("default"))) unsigned standin_noted(unsigned reason) {
    return gcr::notes[reason].load();
}
__attribute__((visibility("default"))) int standin_refuses_its_own_address() {
    void* own = gcr::hooks::wrappers[gcr::hooks::k_cuMemCreate];
    return gcr::hooks::publish(gcr::hooks::k_cuMemCreate, own) != own;
}
__attribute__((visibility("default"))) unsigned standin_unclassified() {
    return gcr::hooks::unclassified_count();
}
__attribute__((visibility("default"))) const char* standin_unclassified_name(unsigned position) {
    return gcr::hooks::unclassified_name(position);
}
}
