// SPDX-License-Identifier: Apache-2.0
#ifndef GCR_CUDA_VENDOR_H
#define GCR_CUDA_VENDOR_H

#include "core/vendor.h"

namespace gcr {
namespace cuda {

const VendorOps& vendor_ops();

}  // namespace cuda
}  // namespace gcr

#endif  // GCR_CUDA_VENDOR_H
