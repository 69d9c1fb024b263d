// SPDX-License-Identifier: Apache-2.0
#ifndef GCR_ACL_OPS_H
#define GCR_ACL_OPS_H

#include "device/ops.h"

namespace gcr {
namespace acl {

extern const device::DeviceOps kDeviceOps;

}  // namespace acl
}  // namespace gcr

#endif  // GCR_ACL_OPS_H
