// SPDX-License-Identifier: Apache-2.0
#ifndef GCR_ACL_VENDOR_H
#define GCR_ACL_VENDOR_H

#include "core/vendor.h"

namespace gcr {
namespace acl {

const VendorOps& vendor_ops();

}  // namespace acl
}  // namespace gcr

#endif  // GCR_ACL_VENDOR_H
