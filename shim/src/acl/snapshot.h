// SPDX-License-Identifier: Apache-2.0
//
// The control state of this process through the runtime's snapshot calls, which only the process itself may make.
#ifndef GCR_ACL_SNAPSHOT_H
#define GCR_ACL_SNAPSHOT_H

#include "core/vendor.h"

namespace gcr {
namespace acl {

// The agent's thread, gate closed, memory handed over. From kLock to kUnlock nearly every other call of the runtime in
// this process waits, ours too: nothing else is called in between.
Failure snapshot(wire::SnapshotStep step);
wire::SnapshotPhase snapshot_phase();

}  // namespace acl
}  // namespace gcr

#endif  // GCR_ACL_SNAPSHOT_H
