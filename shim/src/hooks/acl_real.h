// SPDX-License-Identifier: Apache-2.0
//
// The runtime's own functions: gcr::real::<symbol>(…) for every GCR_HOOK of acl.def.
#ifndef GCR_HOOKS_ACL_REAL_H
#define GCR_HOOKS_ACL_REAL_H

#include "abi/acl.h"
#include "hooks/original.h"

namespace gcr {
namespace real {

using namespace acl_abi;

#define GCR_HOOK(symbol, kind, parameters, arguments) GCR_REAL(symbol, aclError, parameters)
#include "hooks/acl.def"

}  // namespace real
}  // namespace gcr

#endif  // GCR_HOOKS_ACL_REAL_H
