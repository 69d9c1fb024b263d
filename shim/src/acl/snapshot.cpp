// SPDX-License-Identifier: Apache-2.0
#include "acl/snapshot.h"

#include <unistd.h>

#include "acl/contexts.h"

namespace gcr {
namespace acl {
namespace {

struct Step {
    aclError result;
    const char* call;
};

// Releases before 9.1 take no parameters and look at none; from then on it is these.
Step perform(wire::SnapshotStep step) {
    int pid = getpid();
    switch (step) {
        case wire::kStepLock:
            return {real::aclrtSnapShotProcessLock(pid, nullptr), "aclrtSnapShotProcessLock"};
        case wire::kStepBackup:
            return {real::aclrtSnapShotProcessBackup(pid, nullptr), "aclrtSnapShotProcessBackup"};
        case wire::kStepRestore:
            return {real::aclrtSnapShotProcessRestore(pid, nullptr), "aclrtSnapShotProcessRestore"};
        case wire::kStepUnlock:
            return {real::aclrtSnapShotProcessUnlock(pid, nullptr), "aclrtSnapShotProcessUnlock"};
        default:
            return {ACL_ERROR_INVALID_PARAM, "aclrtSnapShotProcess"};
    }
}

bool has_snapshots() {
    return real::has_aclrtSnapShotProcessLock() && real::has_aclrtSnapShotProcessUnlock() &&
           real::has_aclrtSnapShotProcessBackup() && real::has_aclrtSnapShotProcessRestore() &&
           real::has_rtSnapShotProcessGetState();
}

}  // namespace

Failure snapshot(wire::SnapshotStep step) {
    if (!has_snapshots()) return {wire::kRefused, 0, "this CANN has no snapshot calls"};
    PinnedContext context(pin_context_of(0));
    CurrentContext scope(context.handle());
    Step done = perform(step);
    if (done.result == ACL_SUCCESS) return {};
    return {wire::kDriver, done.result, "failed", done.call};
}

wire::SnapshotPhase snapshot_phase() {
    if (!has_snapshots()) return wire::kSnapshotUnknown;
    rtProcessState phase = RT_PROCESS_STATE_RUNNING;
    if (real::rtSnapShotProcessGetState(&phase) != ACL_SUCCESS) return wire::kSnapshotUnknown;
    switch (phase) {
        case RT_PROCESS_STATE_RUNNING:
            return wire::kSnapshotRunning;
        case RT_PROCESS_STATE_LOCKED:
            return wire::kSnapshotLocked;
        case RT_PROCESS_STATE_BACKED_UP:
            return wire::kSnapshotSaved;
        default:
            return wire::kSnapshotUnknown;
    }
}

}  // namespace acl
}  // namespace gcr
