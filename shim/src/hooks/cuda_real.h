// SPDX-License-Identifier: Apache-2.0
//
// The driver's own functions: gcr::real::<symbol>(…) for every GCR_HOOK of cuda.def.
#ifndef GCR_HOOKS_CUDA_REAL_H
#define GCR_HOOKS_CUDA_REAL_H

#include "abi/cuda.h"
#include "hooks/original.h"

namespace gcr {
namespace real {

using namespace cuda_abi;

#define GCR_HOOK(symbol, base, version, stream, kind, parameters, arguments) GCR_REAL(symbol, CUresult, parameters)
#include "hooks/cuda.def"

}  // namespace real
}  // namespace gcr

#endif  // GCR_HOOKS_CUDA_REAL_H
