// SPDX-License-Identifier: Apache-2.0
//
// Kinds of device memory: huge pages, pages of 1 GiB, memory that peers may map.
#ifndef GCR_ACL_MEMORY_H
#define GCR_ACL_MEMORY_H

#include "acl/state.h"

namespace gcr {
namespace acl {

aclrtPhysicalMemProp memory_of_kind(int device, aclrtMemAttr kind);
uint64_t granularity_of(int device, aclrtMemAttr kind);  // bytes; 0: the runtime has no such memory

}  // namespace acl
}  // namespace gcr

#endif  // GCR_ACL_MEMORY_H
