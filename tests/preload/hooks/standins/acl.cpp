// SPDX-License-Identifier: Apache-2.0
//
// ACL's half, see standins.cpp: every call that the shim would answer goes to the runtime.
#include "hooks/acl_calls.h"
#include "hooks/acl_real.h"

namespace gcr {
namespace acl {

#define GCR_ON_ALLOCATE(symbol, parameters, arguments) \
    aclError on_##symbol parameters {                  \
        return real::symbol arguments;                 \
    }
#define GCR_ON_ENQUEUE(...)
#define GCR_ON_PASSIVE(...)
#define GCR_ON_REFUSE_IPC_EXPORT(...)
#define GCR_ON_REFUSE_IPC_IMPORT(...)
#define GCR_ON_REFUSE_MANAGED(...)
#define GCR_ON_REFUSE_MULTICAST(...)
#define GCR_ON_REFUSE_UNEXPORTABLE(...)
#define GCR_HOOK(symbol, kind, parameters, arguments) GCR_ON_##kind(symbol, parameters, arguments)
#include "hooks/acl.def"

}  // namespace acl
}  // namespace gcr
