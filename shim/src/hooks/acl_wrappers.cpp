// SPDX-License-Identifier: Apache-2.0
//
// The wrappers: one function for every GCR_HOOK of acl.def, exported under the runtime's name (see exports.map).
// They are the launch path of the user's program: no lock, no allocation, nothing but the gate and the call.
//
// ACL, and libraries beside it, call the runtime below through exports (rt*) that are hooked, too. A call from inside a
// call goes straight on.
#include "core/coverage.h"
#include "core/inside.h"
#include "hooks/acl_calls.h"
#include "hooks/acl_real.h"
#include "hooks/export.h"

using namespace gcr::acl_abi;
namespace real = gcr::real;

#define GCR_EXPORT(symbol, parameters) GCR_EXPORT_AS(aclError, symbol, parameters)

#define GCR_WRAP_ALLOCATE(symbol, parameters, arguments) \
    GCR_ALLOCATE_INSIDE(acl, gcr::inside_a_call, symbol, parameters, arguments)

#define GCR_WRAP_ENQUEUE(symbol, parameters, arguments)          \
    GCR_EXPORT(symbol, parameters) {                             \
        if (gcr::inside_a_call()) return real::symbol arguments; \
        gcr::GateEntry in_flight;                                \
        return real::symbol arguments;                           \
    }

// Never gated: the wait of one thread may be what another's work is for.
#define GCR_WRAP_PASSIVE(symbol, parameters, arguments) \
    GCR_CALL_INSIDE(gcr::PassiveEntry, aclError, symbol, parameters, arguments)

#define GCR_WRAP_REFUSE(reason, symbol, parameters, arguments)               \
    GCR_EXPORT(symbol, parameters) {                                         \
        if (gcr::inside_a_call()) return real::symbol arguments;             \
        gcr::GateEntry in_flight;                                            \
        aclError result = real::symbol arguments;                            \
        if (result == ACL_SUCCESS) gcr::add_uncovered(gcr::wire::reason, 0); \
        return result;                                                       \
    }

#define GCR_WRAP_REFUSE_IPC_EXPORT(...) GCR_WRAP_REFUSE(kReasonIpcExport, __VA_ARGS__)
#define GCR_WRAP_REFUSE_IPC_IMPORT(...) GCR_WRAP_REFUSE(kReasonIpcImport, __VA_ARGS__)
#define GCR_WRAP_REFUSE_MANAGED(...) GCR_WRAP_REFUSE(kReasonManaged, __VA_ARGS__)
#define GCR_WRAP_REFUSE_MULTICAST(...) GCR_WRAP_REFUSE(kReasonMulticast, __VA_ARGS__)
#define GCR_WRAP_REFUSE_UNEXPORTABLE(...) GCR_WRAP_REFUSE(kReasonUnexportable, __VA_ARGS__)

#define GCR_HOOK(symbol, kind, parameters, arguments) GCR_WRAP_##kind(symbol, parameters, arguments)
#include "hooks/acl.def"
