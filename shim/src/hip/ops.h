// SPDX-License-Identifier: Apache-2.0
#ifndef GCR_HIP_OPS_H
#define GCR_HIP_OPS_H

#include "device/ops.h"

namespace gcr {
namespace hip {

extern const device::DeviceOps kDeviceOps;

}  // namespace hip
}  // namespace gcr

#endif  // GCR_HIP_OPS_H
