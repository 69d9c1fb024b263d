// SPDX-License-Identifier: Apache-2.0
//
// The runtime's own functions: gcr::real::<symbol>(…) for every GCR_HOOK of hip.def.
#ifndef GCR_HOOKS_HIP_REAL_H
#define GCR_HOOKS_HIP_REAL_H

#include "abi/hip.h"
#include "hooks/original.h"

namespace gcr {
namespace real {

using namespace hip_abi;

#define GCR_HOOK(symbol, kind, parameters, arguments) GCR_REAL(symbol, hipError_t, parameters)
#include "hooks/hip.def"

}  // namespace real
}  // namespace gcr

#endif  // GCR_HOOKS_HIP_REAL_H
