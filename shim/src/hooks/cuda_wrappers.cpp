// SPDX-License-Identifier: Apache-2.0
//
// The wrappers: one function for every GCR_HOOK of cuda.def, exported under the driver's name (see exports.map).
// They are the launch path of the user's program: no lock, no allocation, nothing but the gate and the call.
#include "core/coverage.h"
#include "core/inside.h"
#include "cuda/described.h"
#include "hooks/cuda_calls.h"
#include "hooks/cuda_real.h"
#include "hooks/export.h"
#include "hooks/proc_address.h"

using namespace gcr::cuda_abi;
namespace real = gcr::real;

namespace {

void trim_pools_in_flight() {
    gcr::GateEntry in_flight;
    gcr::cuda::trim_pools();
}

}  // namespace

#define GCR_EXPORT(symbol, parameters) GCR_EXPORT_AS(CUresult, symbol, parameters)

#define GCR_WRAP_ALLOCATE(symbol, parameters, arguments) \
    GCR_ALLOCATE_INSIDE(cuda, gcr::reentered, symbol, parameters, arguments)

#define GCR_WRAP_ENQUEUE(symbol, parameters, arguments) \
    GCR_CALL_DESCRIBED(gcr::GateEntry, CUresult, gcr::cuda::Described{}, symbol, parameters, arguments)

// Never gated: the wait of one thread may be what another's work is for.
#define GCR_WRAP_PASSIVE(symbol, parameters, arguments) \
    GCR_CALL_INSIDE(gcr::PassiveEntry, CUresult, symbol, parameters, arguments)

#define GCR_WRAP_QUERY(symbol, parameters, arguments)                      \
    GCR_EXPORT(symbol, parameters) {                                       \
        gcr::EndEntry inside;                                              \
        return inside.has_ended() ? CUDA_SUCCESS : real::symbol arguments; \
    }

#define GCR_WRAP_CURRENT(symbol, parameters, arguments)                       \
    GCR_EXPORT(symbol, parameters) {                                          \
        {                                                                     \
            gcr::EndEntry inside;                                             \
            if (!inside.has_ended()) return gcr::cuda::on_##symbol arguments; \
        }                                                                     \
        CUresult answer = gcr::cuda::frozen_##symbol arguments;               \
        if (answer != gcr::cuda::kUnanswered) return answer;                  \
        gcr::PassiveEntry inside;                                             \
        return gcr::cuda::on_##symbol arguments;                              \
    }

#define GCR_WRAP_DISCARD(symbol, parameters, arguments)                           \
    GCR_EXPORT(symbol, parameters) {                                              \
        {                                                                         \
            gcr::DiscardEntry in_flight;                                          \
            if (!in_flight.is_put_off()) return gcr::cuda::on_##symbol arguments; \
        }                                                                         \
        CUresult answer = gcr::cuda::put_off_##symbol arguments;                  \
        if (answer != gcr::cuda::kUnanswered) return answer;                      \
        gcr::GateEntry in_flight;                                                 \
        return gcr::cuda::on_##symbol arguments;                                  \
    }

#define GCR_WRAP_WAIT(symbol, parameters, arguments)                                                                \
    GCR_EXPORT(symbol, parameters) {                                                                                \
        CUresult result;                                                                                            \
        {                                                                                                           \
            gcr::EndEntry inside;                                                                                   \
            if (inside.has_ended()) return CUDA_SUCCESS;                                                            \
            result = real::symbol arguments;                                                                        \
        }                                                                                                           \
        if (__builtin_expect(gcr::cuda::pools_hold_too_much(), 0) && !gcr::inside_a_call()) trim_pools_in_flight(); \
        return result;                                                                                              \
    }

#define GCR_WRAP_REFUSE(reason, symbol, parameters, arguments)                \
    GCR_EXPORT(symbol, parameters) {                                          \
        if (gcr::reentered()) return real::symbol arguments;                  \
        gcr::GateEntry in_flight;                                             \
        CUresult result = real::symbol arguments;                             \
        if (result == CUDA_SUCCESS) gcr::add_uncovered(gcr::wire::reason, 0); \
        return result;                                                        \
    }

#define GCR_WRAP_LOOKUP(symbol, parameters, arguments)                    \
    GCR_EXPORT(symbol, parameters) {                                      \
        const void* caller = __builtin_return_address(0);                 \
        gcr::PassiveEntry inside;                                         \
        return gcr::hooks::answer_##symbol(caller, GCR_UNPACK arguments); \
    }
#define GCR_UNPACK(...) __VA_ARGS__

#define GCR_WRAP_REFUSE_ARRAY(...) GCR_WRAP_REFUSE(kReasonArray, __VA_ARGS__)
#define GCR_WRAP_REFUSE_CAPTURE(...) GCR_WRAP_REFUSE(kReasonCapture, __VA_ARGS__)
#define GCR_WRAP_REFUSE_EXTERNAL(...) GCR_WRAP_REFUSE(kReasonExternal, __VA_ARGS__)
#define GCR_WRAP_REFUSE_FABRIC(...) GCR_WRAP_REFUSE(kReasonFabric, __VA_ARGS__)
#define GCR_WRAP_REFUSE_GREEN_CONTEXT(...) GCR_WRAP_REFUSE(kReasonGreenContext, __VA_ARGS__)
#define GCR_WRAP_REFUSE_SHAREABLE_EXPORT(...) GCR_WRAP_REFUSE(kReasonShareableExport, __VA_ARGS__)
#define GCR_WRAP_REFUSE_UNEXPORTABLE(...) GCR_WRAP_REFUSE(kReasonUnexportable, __VA_ARGS__)

#define GCR_HOOK(symbol, base, version, stream, kind, parameters, arguments) \
    GCR_WRAP_##kind(symbol, parameters, arguments)
#include "hooks/cuda.def"
