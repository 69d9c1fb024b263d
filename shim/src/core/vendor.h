// SPDX-License-Identifier: Apache-2.0
//
// What the agent asks of one vendor's half of the shim, besides what src/device does with its memory. All but
// `simulated` and `contexts` may call the driver; they are called by the agent's thread (`synchronize` and `stuck`: by a
// helper thread), never while the agent is frozen.
#ifndef GCR_CORE_VENDOR_H
#define GCR_CORE_VENDOR_H

#include <stdint.h>

#include "core/array.h"
#include "core/lock.h"
#include "gcr/wire.h"

namespace gcr {

namespace device {
struct State;
enum class Release : uint32_t;
}  // namespace device

// Why a request could not be done; becomes an ErrorRecord.
struct Failure {
    uint32_t code = 0;  // wire::ErrorCode; 0: none
    int32_t vendor_error = 0;
    const char* message = "";
    const char* call = nullptr;  // the driver's function that failed
    constexpr Failure() = default;
    constexpr Failure(uint32_t why, int32_t error, const char* text, const char* name = nullptr)
        : code(why), vendor_error(error), message(text), call(name) {}
    explicit operator bool() const { return code != 0; }
};

struct ExportBatch {
    uint32_t limit = 0;
    uint32_t count = 0;
    uint32_t more = 0;
    uint64_t last_id = 0;
    wire::HandleRecord records[wire::kMaxDescriptors] = {};
    uint32_t descriptor_count = 0;  // records flagged kHandleKept or kHandleUnexportable have none
    int descriptors[wire::kMaxDescriptors] = {};
};

struct MappingPage {
    static constexpr uint32_t kLimit = 1500;  // fits kMaxFrame
    uint32_t limit = 0;
    uint32_t count = 0;
    uint32_t more = 0;
    uint64_t cursor = 0;  // opaque to the daemon; 0: from the first
    wire::MappingRecord records[kLimit] = {};
};

struct SharedPage {
    static constexpr uint32_t kLimit = 1200;  // fits kMaxFrame
    uint32_t limit = 0;
    uint32_t count = 0;
    uint32_t more = 0;
    uint64_t after = 0;  // so many were on earlier pages
    uint64_t passed = 0;  // so many are by now
    wire::SharedRecord records[kLimit] = {};
};

struct Tally {
    uint64_t handles = 0;
    uint64_t bytes = 0;
};

enum class Direction { kOut, kIn };  // device memory to host memory, and back

struct VendorOps {
    device::State* memory;
    bool (*simulated)();
    void (*enter_thread)();  // once, on each thread of ours, before its first driver call
    uint32_t (*contexts)();  // the program's
    Failure (*synchronize)();
    uint32_t (*stuck)(wire::StuckRecord* records, uint32_t limit);
    void (*each_lock)(void (Lock::*act)());  // the vendor's own, besides those of its memory; or null
    void (*reset_after_fork)();  // in the child, which holds none of the parent's device state
    // ---- or null: only an image of the process, or the driver from outside, saves what the driver keeps.
    // The runtime's own snapshot, made by the process itself. `snapshot`: the one thing called while the agent is frozen.
    Failure (*snapshot)(wire::SnapshotStep step) = nullptr;
    wire::SnapshotPhase (*snapshot_phase)() = nullptr;
    // ---- or null: the driver has no answer for calls after its end. `error` is that answer, and the driver gives it to
    // a question that concerns no device as well: it has shut down in this process.
    bool (*gone)(int32_t error) = nullptr;
};

}  // namespace gcr

#endif  // GCR_CORE_VENDOR_H
