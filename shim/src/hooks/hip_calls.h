// SPDX-License-Identifier: Apache-2.0
//
// What the wrappers call: gcr::hip::on_<symbol>, one for every ALLOCATE line of hip.def, defined under src/hip/.
// Called in flight (a GateEntry is alive), never from inside the shim or the runtime. Returns what the runtime would.
#ifndef GCR_HOOKS_HIP_CALLS_H
#define GCR_HOOKS_HIP_CALLS_H

#include "abi/hip.h"

namespace gcr {
namespace hip {

using namespace hip_abi;

// The calling thread's first call that allocates or enqueues: the process becomes known to the agent.
extern __thread bool arrived __attribute__((tls_model("initial-exec"), visibility("hidden")));
void arrive();

void use_device(int device);  // the program made it current

// The program waited for the device: pools give back what they hold too much.
bool pools_hold_too_much();
void trim_pools();

// The runtime keeps the last error of a thread, and programs ask for it. Calls of ours that failed on the way to a
// success must leave none behind.
class LastError {
  public:
    LastError();
    hipError_t after(hipError_t result);

  private:
    bool clean_;
};

// Kinds other than ALLOCATE expand to nothing; every REFUSE_<REASON> is listed, so a new one fails to build here.
#define GCR_ON_ALLOCATE(symbol, parameters) hipError_t on_##symbol parameters;
#define GCR_ON_ENQUEUE(symbol, parameters)
#define GCR_ON_PASSIVE(symbol, parameters)
#define GCR_ON_SELECT(symbol, parameters)
#define GCR_ON_LOOKUP(symbol, parameters)
#define GCR_ON_WAIT(symbol, parameters)
#define GCR_ON_REFUSE_CAPTURE(symbol, parameters)
#define GCR_ON_REFUSE_EXTERNAL(symbol, parameters)
#define GCR_ON_REFUSE_GREEN_CONTEXT(symbol, parameters)
#define GCR_ON_REFUSE_SHAREABLE_EXPORT(symbol, parameters)
#define GCR_HOOK(symbol, kind, parameters, arguments) GCR_ON_##kind(symbol, parameters)
#include "hooks/hip.def"
#undef GCR_ON_ALLOCATE
#undef GCR_ON_ENQUEUE
#undef GCR_ON_PASSIVE
#undef GCR_ON_SELECT
#undef GCR_ON_LOOKUP
#undef GCR_ON_WAIT
#undef GCR_ON_REFUSE_CAPTURE
#undef GCR_ON_REFUSE_EXTERNAL
#undef GCR_ON_REFUSE_GREEN_CONTEXT
#undef GCR_ON_REFUSE_SHAREABLE_EXPORT

}  // namespace hip
}  // namespace gcr

#endif  // GCR_HOOKS_HIP_CALLS_H
