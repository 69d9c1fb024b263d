// SPDX-License-Identifier: Apache-2.0
//
// What the wrappers call: gcr::cuda::on_<symbol>, one for every ALLOCATE line of cuda.def, defined under src/cuda/.
// Called in flight (a GateEntry is alive), never from inside the shim or the driver. Returns what the driver would.
#ifndef GCR_HOOKS_CUDA_CALLS_H
#define GCR_HOOKS_CUDA_CALLS_H

#include "abi/cuda.h"

namespace gcr {
namespace cuda {

using namespace cuda_abi;

// The program waited for the device: pools give back what they hold too much.
bool pools_hold_too_much();
void trim_pools();

constexpr CUresult kUnanswered = static_cast<CUresult>(-1);  // the call has to be made

// Kinds other than these expand to nothing; every REFUSE_<REASON> is listed, so a new one fails to build here.
#define GCR_ON_ALLOCATE(symbol, parameters) CUresult on_##symbol parameters;
// Instead of the call, while the gate is closed.
#define GCR_ON_DISCARD(symbol, parameters) \
    CUresult on_##symbol parameters;       \
    CUresult put_off_##symbol parameters;
// Instead of the call, while the control state is frozen.
#define GCR_ON_CURRENT(symbol, parameters) \
    CUresult on_##symbol parameters;       \
    CUresult frozen_##symbol parameters;
#define GCR_ON_ENQUEUE(symbol, parameters)
#define GCR_ON_PASSIVE(symbol, parameters)
#define GCR_ON_QUERY(symbol, parameters)
#define GCR_ON_LOOKUP(symbol, parameters)
#define GCR_ON_WAIT(symbol, parameters)
#define GCR_ON_REFUSE_ARRAY(symbol, parameters)
#define GCR_ON_REFUSE_CAPTURE(symbol, parameters)
#define GCR_ON_REFUSE_EXTERNAL(symbol, parameters)
#define GCR_ON_REFUSE_FABRIC(symbol, parameters)
#define GCR_ON_REFUSE_GREEN_CONTEXT(symbol, parameters)
#define GCR_ON_REFUSE_SHAREABLE_EXPORT(symbol, parameters)
#define GCR_ON_REFUSE_UNEXPORTABLE(symbol, parameters)
#define GCR_HOOK(symbol, base, version, stream, kind, parameters, arguments) GCR_ON_##kind(symbol, parameters)
#include "hooks/cuda.def"
#undef GCR_ON_ALLOCATE
#undef GCR_ON_CURRENT
#undef GCR_ON_DISCARD
#undef GCR_ON_ENQUEUE
#undef GCR_ON_PASSIVE
#undef GCR_ON_QUERY
#undef GCR_ON_LOOKUP
#undef GCR_ON_WAIT
#undef GCR_ON_REFUSE_ARRAY
#undef GCR_ON_REFUSE_CAPTURE
#undef GCR_ON_REFUSE_EXTERNAL
#undef GCR_ON_REFUSE_FABRIC
#undef GCR_ON_REFUSE_GREEN_CONTEXT
#undef GCR_ON_REFUSE_SHAREABLE_EXPORT
#undef GCR_ON_REFUSE_UNEXPORTABLE

}  // namespace cuda
}  // namespace gcr

#endif  // GCR_HOOKS_CUDA_CALLS_H
