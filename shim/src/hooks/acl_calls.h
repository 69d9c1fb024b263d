// SPDX-License-Identifier: Apache-2.0
//
// What the wrappers call: gcr::acl::on_<symbol>, one for every ALLOCATE line of acl.def, defined under src/acl/.
// Called in flight (a GateEntry is alive), never from inside the shim or the runtime. Returns what the runtime would.
#ifndef GCR_HOOKS_ACL_CALLS_H
#define GCR_HOOKS_ACL_CALLS_H

#include "abi/acl.h"

namespace gcr {
namespace acl {

using namespace acl_abi;

// Kinds other than ALLOCATE expand to nothing; every REFUSE_<REASON> is listed, so a new one fails to build here.
#define GCR_ON_ALLOCATE(symbol, parameters) aclError on_##symbol parameters;
#define GCR_ON_ENQUEUE(symbol, parameters)
#define GCR_ON_PASSIVE(symbol, parameters)
#define GCR_ON_REFUSE_IPC_EXPORT(symbol, parameters)
#define GCR_ON_REFUSE_IPC_IMPORT(symbol, parameters)
#define GCR_ON_REFUSE_MANAGED(symbol, parameters)
#define GCR_ON_REFUSE_MULTICAST(symbol, parameters)
#define GCR_ON_REFUSE_UNEXPORTABLE(symbol, parameters)
#define GCR_HOOK(symbol, kind, parameters, arguments) GCR_ON_##kind(symbol, parameters)
#include "hooks/acl.def"
#undef GCR_ON_ALLOCATE
#undef GCR_ON_ENQUEUE
#undef GCR_ON_PASSIVE
#undef GCR_ON_REFUSE_IPC_EXPORT
#undef GCR_ON_REFUSE_IPC_IMPORT
#undef GCR_ON_REFUSE_MANAGED
#undef GCR_ON_REFUSE_MULTICAST
#undef GCR_ON_REFUSE_UNEXPORTABLE

}  // namespace acl
}  // namespace gcr

#endif  // GCR_HOOKS_ACL_CALLS_H
