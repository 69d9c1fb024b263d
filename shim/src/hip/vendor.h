// SPDX-License-Identifier: Apache-2.0
#ifndef GCR_HIP_VENDOR_H
#define GCR_HIP_VENDOR_H

#include "core/vendor.h"

namespace gcr {
namespace hip {

const VendorOps& vendor_ops();

}  // namespace hip
}  // namespace gcr

#endif  // GCR_HIP_VENDOR_H
