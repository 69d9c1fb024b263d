// SPDX-License-Identifier: Apache-2.0
#ifndef GCR_CUDA_OPS_H
#define GCR_CUDA_OPS_H

#include "device/ops.h"

namespace gcr {
namespace cuda {

extern const device::DeviceOps kDeviceOps;

}  // namespace cuda
}  // namespace gcr

#endif  // GCR_CUDA_OPS_H
