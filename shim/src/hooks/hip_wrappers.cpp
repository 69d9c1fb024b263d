// SPDX-License-Identifier: Apache-2.0
//
// The wrappers: one function for every GCR_HOOK of hip.def, exported under the runtime's name, without a version: the
// runtime has some twenty version nodes, and references with any of them bind to a definition without one.
// They are the launch path of the user's program: no lock, no allocation, nothing but the gate and the call.
//
// The runtime calls some of its own exports through the PLT, so these functions are also what it meets. A call from
// inside a call goes straight to the runtime.
#include "core/coverage.h"
#include "core/inside.h"
#include "hooks/export.h"
#include "hooks/hip_calls.h"
#include "hooks/hip_lookups.h"
#include "hooks/hip_real.h"

using namespace gcr::hip_abi;
namespace real = gcr::real;

namespace {

void trim_pools_in_flight() {
    gcr::GateEntry in_flight;
    gcr::hip::LastError error;
    gcr::hip::trim_pools();
    error.after(hipSuccess);
}

}  // namespace

#define GCR_EXPORT(symbol, parameters)                                                                \
    __asm__(".globl " #symbol "\n.type " #symbol ", @function\n.set " #symbol ", gcr_wrap_" #symbol); \
    GCR_WRAPPER(hipError_t, symbol, parameters)

#define GCR_WRAP_ALLOCATE(symbol, parameters, arguments)                 \
    GCR_EXPORT(symbol, parameters) {                                     \
        if (gcr::inside_a_call()) return real::symbol arguments;         \
        gcr::GateEntry in_flight;                                        \
        gcr::hip::LastError error;                                       \
        if (__builtin_expect(!gcr::hip::arrived, 0)) gcr::hip::arrive(); \
        return error.after(gcr::hip::on_##symbol arguments);             \
    }

#define GCR_WRAP_ENQUEUE(symbol, parameters, arguments)                  \
    GCR_EXPORT(symbol, parameters) {                                     \
        if (gcr::inside_a_call()) return real::symbol arguments;         \
        gcr::GateEntry in_flight;                                        \
        if (__builtin_expect(!gcr::hip::arrived, 0)) gcr::hip::arrive(); \
        return real::symbol arguments;                                   \
    }

// Never gated: the wait of one thread may be what another's work is for.
#define GCR_WRAP_PASSIVE(symbol, parameters, arguments) \
    GCR_CALL_INSIDE(gcr::PassiveEntry, hipError_t, symbol, parameters, arguments)

#define GCR_WRAP_WAIT(symbol, parameters, arguments)                                                               \
    GCR_EXPORT(symbol, parameters) {                                                                               \
        hipError_t result;                                                                                         \
        {                                                                                                          \
            gcr::PassiveEntry inside;                                                                              \
            result = real::symbol arguments;                                                                       \
        }                                                                                                          \
        if (__builtin_expect(gcr::hip::pools_hold_too_much(), 0) && !gcr::inside_a_call()) trim_pools_in_flight(); \
        return result;                                                                                             \
    }

#define GCR_WRAP_SELECT(symbol, parameters, arguments)            \
    GCR_EXPORT(symbol, parameters) {                              \
        if (gcr::inside_a_call()) return real::symbol arguments;  \
        gcr::PassiveEntry inside;                                 \
        hipError_t result = real::symbol arguments;               \
        if (result == hipSuccess) gcr::hip::use_device arguments; \
        return result;                                            \
    }

#define GCR_WRAP_REFUSE(reason, symbol, parameters, arguments)              \
    GCR_EXPORT(symbol, parameters) {                                        \
        if (gcr::inside_a_call()) return real::symbol arguments;            \
        gcr::GateEntry in_flight;                                           \
        if (__builtin_expect(!gcr::hip::arrived, 0)) gcr::hip::arrive();    \
        hipError_t result = real::symbol arguments;                         \
        if (result == hipSuccess) gcr::add_uncovered(gcr::wire::reason, 0); \
        return result;                                                      \
    }

#define GCR_WRAP_LOOKUP(symbol, parameters, arguments)                    \
    GCR_EXPORT(symbol, parameters) {                                      \
        const void* caller = __builtin_return_address(0);                 \
        gcr::PassiveEntry inside;                                         \
        return gcr::hooks::answer_##symbol(caller, GCR_UNPACK arguments); \
    }
#define GCR_UNPACK(...) __VA_ARGS__

#define GCR_WRAP_REFUSE_CAPTURE(...) GCR_WRAP_REFUSE(kReasonCapture, __VA_ARGS__)
#define GCR_WRAP_REFUSE_EXTERNAL(...) GCR_WRAP_REFUSE(kReasonExternal, __VA_ARGS__)
#define GCR_WRAP_REFUSE_GREEN_CONTEXT(...) GCR_WRAP_REFUSE(kReasonGreenContext, __VA_ARGS__)
#define GCR_WRAP_REFUSE_SHAREABLE_EXPORT(...) GCR_WRAP_REFUSE(kReasonShareableExport, __VA_ARGS__)

#define GCR_HOOK(symbol, kind, parameters, arguments) GCR_WRAP_##kind(symbol, parameters, arguments)
#include "hooks/hip.def"
