// SPDX-License-Identifier: Apache-2.0
//
// The driver as a program sees it: every function by its exported name, found by the dynamic linker.
#ifndef GCR_TEST_DRIVER_H
#define GCR_TEST_DRIVER_H

#include "abi/cuda.h"

using namespace gcr::cuda_abi;

#define GCR_HOOK(symbol, base, version, stream, kind, parameters, arguments) extern "C" CUresult symbol parameters;
#include "hooks/cuda.def"

#endif
