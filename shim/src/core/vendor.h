// SPDX-License-Identifier: Apache-2.0
//
// What the agent asks of one vendor's half of the shim. All but `captures` and `status` may call the driver; they are
// called by the agent's thread (`synchronize` and `stuck`: by a helper thread), never while the agent is frozen.
#ifndef GCR_CORE_VENDOR_H
#define GCR_CORE_VENDOR_H

#include <stdint.h>

#include "core/array.h"
#include "gcr/wire.h"

namespace gcr {

// Why a request could not be done; becomes an ErrorRecord.
struct Failure {
    uint32_t code = 0;  // wire::ErrorCode; 0: none
    int32_t vendor_error = 0;
    const char* message = "";
    explicit operator bool() const { return code != 0; }
};

struct ExportBatch {
    uint32_t limit = 0;
    uint32_t count = 0;
    uint32_t more = 0;
    uint64_t last_id = 0;
    wire::HandleRecord records[wire::kMaxDescriptors] = {};
    uint32_t descriptor_count = 0;  // records flagged kHandleKept have none
    int descriptors[wire::kMaxDescriptors] = {};
};

struct MappingPage {
    static constexpr uint32_t kLimit = 1500;  // fits kMaxFrame
    uint32_t limit = 0;
    uint32_t count = 0;
    uint32_t more = 0;
    uint64_t cursor = 0;
    wire::MappingRecord records[kLimit] = {};
};

struct Tally {
    uint64_t handles = 0;
    uint64_t bytes = 0;
};

struct VendorOps {
    uint32_t vendor;
    bool (*simulated)();
    void (*enter_thread)();  // once, on each thread of ours, before its first driver call
    void (*status)(wire::StatusRecord* status, Array<wire::DeviceRecord>* devices);
    uint32_t (*captures)();
    Failure (*export_after)(uint64_t after_id, ExportBatch* batch);
    void (*mappings_after)(uint64_t cursor, MappingPage* page);
    Failure (*synchronize)();
    uint32_t (*stuck)(wire::StuckRecord* records, uint32_t limit);
    Failure (*hand_over)(Tally* tally);
    // Takes the descriptors: each is closed, whatever happens.
    Failure (*import)(const uint64_t* ids, const int* descriptors, uint32_t count, Tally* tally);
    Failure (*map)(Tally* tally);
    Failure (*discard)(Tally* tally);
    void (*end_transaction)();  // nothing is exported any more; makes no driver call
    void (*lock_for_fork)();
    void (*unlock_after_fork)();
    void (*reset_after_fork)();  // in the child, which holds none of the parent's device state
};

}  // namespace gcr

#endif  // GCR_CORE_VENDOR_H
