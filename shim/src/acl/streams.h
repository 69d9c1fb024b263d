// SPDX-License-Identifier: Apache-2.0
#ifndef GCR_ACL_STREAMS_H
#define GCR_ACL_STREAMS_H

#include "acl/state.h"

namespace gcr {
namespace acl {

uint32_t stuck_streams(wire::StuckRecord* records, uint32_t limit);  // on a helper thread

uint32_t captures_in_progress();  // no lock, no call of the runtime

}  // namespace acl
}  // namespace gcr

#endif  // GCR_ACL_STREAMS_H
