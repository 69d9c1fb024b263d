// SPDX-License-Identifier: Apache-2.0
//
// The gcr wire protocol: every byte that crosses a gcr socket is described here.
//
// Transport  Unix SOCK_SEQPACKET. One frame is one packet; descriptors travel with the frame that names them.
//            A frame is at most kMaxFrame bytes and carries at most kMaxDescriptors descriptors.
// Layout     little-endian, fixed width, no implicit padding. Records are append-only: a newer peer may send longer
//            records, `record_size` says how long; a reader skips what it does not know.
// Versions   HELLO offers [oldest, newest]; WELCOME names the one chosen. No overlap is an error, not a guess.
// Replies    every request is answered by one frame with the same `request` and type kReply|type, or kError.
//            A malformed frame closes that connection and changes nothing else.
// Numbers    gcr/codes.h: limits, frame types, flags, errors, reasons.
// Mirror     core/gcr/protocol/wire.py and agentwire.py. tests/unit/test_wire_mirror.py compares them, field by field.
//   0        4       6       8                16       20       24
//   | magic  | ver.  | type  | request        | length | fds    | payload (length bytes) ...
//   | GCRW   | u16   | u16   | u64            | u32    | u32    |
#ifndef GCR_WIRE_H
#define GCR_WIRE_H

#include <stddef.h>
#include <stdint.h>

#include "gcr/codes.h"

#ifdef __cplusplus
namespace gcr {
namespace wire {
#endif

struct FrameHeader {
    uint32_t magic;
    uint16_t version;
    uint16_t type;
    uint64_t request;
    uint32_t length;
    uint32_t descriptors;
};

struct HelloRecord {
    uint32_t role;
    uint16_t oldest;
    uint16_t newest;
    uint32_t vendor;  // Vendor whose call came first; the process may use others, and ids tell
    uint32_t phase;  // AgentPhase
    uint32_t flags;  // AgentFlag
    uint32_t pid_label;  // the pid in the sender's own namespace; identity is SO_PEERCRED
    uint64_t transaction;  // 0: none open
    uint64_t generation;  // bumped at every restore; tells a stale image from a fresh one
    char job[64];  // name given by `gcr run`, NUL-padded
    char token[40];  // per-job secret from GCR_TOKEN, NUL-padded
    char version[24];  // gcr's version, NUL-padded
};

struct WelcomeRecord {
    uint16_t version;
    uint16_t flags;  // WelcomeFlag
    uint32_t daemon_pid;
    uint64_t daemon_epoch;
    char daemon_version[24];
};

// A row of the page that comes with an agent's WelcomeRecord: a memory file sealed against shrinking, kOccupiedDevices
// rows, written by the daemon and mapped by agents to read. A row keeps its device. `occupied` is set before anything is
// taken there, and cleared once all was given back: without room an agent asks then (kLetGo), never otherwise.
struct OccupiedRecord {
    uint8_t uuid[16];  // as kStatus gives it; written before `occupied` is
    uint32_t occupied;  // 0, or 1: gcr has memory of the device for a moment, and gives it back on kLetGo
    uint32_t reserved;
};

struct TransactionRecord {
    uint64_t transaction;
};

struct CountRecord {
    uint64_t transaction;
    uint64_t count;  // handles
    uint64_t bytes;
};

struct IdList {  // followed by `count` ids, u64 each
    uint64_t transaction;
    uint32_t count;
    uint32_t reserved;
};

struct ExportRequest {
    uint64_t transaction;
    uint64_t after_id;  // 0: from the first
    uint32_t limit;  // records wanted, at most kMaxDescriptors
    uint32_t reserved;
};

struct ExportReply {
    uint64_t transaction;
    uint64_t last_id;  // pass as after_id to go on
    uint32_t count;
    uint32_t more;  // 0: the end was reached
    uint32_t record_size;
    uint32_t reserved;
};

struct HandleRecord {
    uint64_t id;  // bits 40 to 47: Vendor; ids of one vendor grow with age and are never reused
    uint64_t size;
    uint32_t device;  // its ordinal in that process; DeviceRecord gives the UUID
    uint32_t mappings;  // MappingRecords with this id
    uint32_t type;  // CUmemAllocationType as asked for
    uint32_t asked_types;  // handle types the program itself asked for
    uint8_t compression;  // CUmemAllocationProp.allocFlags
    uint8_t rdma_capable;
    uint16_t usage;
    uint32_t flags;  // HandleFlag
};

struct MappingRecord {
    uint64_t id;
    uint64_t address;
    uint64_t offset;
    uint64_t size;
    uint32_t read_devices;  // bit d: device ordinal d may read
    uint32_t write_devices;  // bit d: device ordinal d may write
};

struct SharedReply {
    uint64_t transaction;
    uint64_t process;  // this one, as `process` of others' records names it: random, since its start or its fork
    uint64_t last_id;  // pass as after_id to go on
    uint32_t count;
    uint32_t more;
    uint32_t record_size;
    uint32_t reserved;
};

// One handle and one other process. Several of a handle that several processes were lent.
struct SharedRecord {
    uint64_t id;
    uint64_t size;
    uint64_t process;  // the owner, or a process that asked for it and has not said that it let go
    uint64_t there;  // foreign: the owner's id of it
    uint32_t device;  // its ordinal in that process
    uint32_t devices;  // foreign; bit d: device ordinal d may read or write it
    uint32_t pid;  // lent: the pid of `process` as this one sees it; 0: not to be seen
    uint32_t flags;  // SharedFlag
};

struct QuiesceRequest {
    uint64_t transaction;
    uint32_t deadline_ms;
    uint32_t pulse_ms;  // without progress for so long the gate pulses; 0: never
};

struct CloseRequest {
    uint64_t transaction;
    uint32_t close;  // 0: the gate opens, and captures may begin
    uint32_t reserved;
};

struct AdmitRequest {
    uint64_t transaction;
    uint32_t thread;  // of a ParkedRecord
    uint32_t calls;  // at most
    uint32_t patience_us;  // for each call, until the thread waits with its next one
    uint32_t walk;  // WalkKind
};
// AllowedRecords may follow, to the end of the frame.

struct AllowedRecord {  // calls of a signature that other processes wait for
    uint64_t signature;
    uint32_t launched;  // so many of them may be made, all told
    uint32_t reserved;
};

struct GateRecord {
    uint64_t transaction;
    uint64_t admitted;  // calls since kClose
    uint64_t unchanged_us;  // since anything of this was otherwise
    uint32_t busy;  // 1: a device works, or did at the last look
    uint32_t in_flight;
    uint32_t captures;
    uint32_t held;  // threads that wait to begin a capture
    uint32_t parked;  // ParkedRecords that follow
    uint32_t incomplete;  // IncompleteRecords after them
};

struct ParkedRecord {
    uint64_t signature;  // 0: of a call that is not known as coupled
    uint32_t thread;
    uint32_t launched;  // calls of that signature so far
    uint32_t flags;  // ParkedFlag
    uint32_t reserved;
};

struct IncompleteRecord {  // a coupled launch on a stream that is not idle
    uint64_t signature;  // of kernel and stream; the same in every process of a communicator
    uint64_t stream;
    uint32_t launched;
    uint32_t reserved;
    char kernel[48];  // NUL-padded, cut
};

struct MadeRecord {  // a signature of which this process has made calls; MadeRecords end the reply to kLook
    uint64_t signature;
    uint32_t launched;
    uint32_t thread;  // that made them all, or kSeveralThreads
};

struct StuckRecord {
    uint64_t stream;  // 0: a context's default stream, or a call in flight
    uint64_t context;
    uint32_t device;
    uint32_t in_flight;  // calls that entered and never left
};

struct StageRequest {
    uint64_t transaction;
    uint32_t offset;  // index of the first descriptor in this frame
    uint32_t total;  // descriptors in all
};

// Followed by `count` CopyRecords of `record_size` bytes each; the frame's descriptors are the segments they name.
struct CopyRequest {
    uint64_t transaction;
    uint32_t count;
    uint32_t record_size;
    uint32_t budget_ms;  // no record is begun after so long
    uint32_t reserved;
};

// One piece of one handle and where it lies in one segment.
struct CopyRecord {
    uint64_t id;
    uint64_t handle_offset;
    uint64_t segment_offset;
    uint64_t size;
    uint32_t segment;  // index of the descriptor in this frame
    uint32_t reserved;
};

struct SnapshotRequest {
    uint64_t transaction;  // kStepLook: not looked at
    uint32_t step;  // SnapshotStep
    uint32_t reserved;
};

struct SnapshotReply {
    uint64_t transaction;
    uint32_t phase;  // SnapshotPhase, after the step
    uint32_t reserved;
};

// Followed by `count` MovedRecords of `record_size` bytes each.
struct MovedRequest {
    uint64_t transaction;
    uint32_t count;
    uint32_t record_size;
};

struct MovedRecord {
    uint8_t old_uuid[16];  // as kStatus gives it
    uint8_t new_uuid[16];
};

struct StatusRecord {
    uint32_t phase;
    uint32_t flags;
    uint64_t transaction;
    uint64_t generation;
    uint64_t covered_bytes;
    uint64_t allocations;
    uint64_t pinned_host_bytes;
    uint32_t handles;
    uint32_t contexts;
    uint32_t devices;  // DeviceRecords that follow
    uint32_t uncovered;  // UncoveredRecords after them
    uint32_t captures;  // stream captures in progress
    uint32_t in_flight;  // gated calls inside the driver right now
    uint64_t gated_calls;  // gated calls seen so far, those inside others too, sampled
};

struct DeviceRecord {
    uint8_t uuid[16];
    uint32_t ordinal;  // of that process: one row over all vendors, each vendor's side by side
    uint32_t handles;
    uint64_t covered_bytes;
};

struct UncoveredRecord {
    uint32_t reason;  // Reason
    uint32_t refuse;  // Refuse
    uint64_t bytes;
    uint64_t count;
};

struct ErrorRecord {
    uint32_t code;
    int32_t vendor_error;
    uint32_t details;  // records that follow (StuckRecord for kStuck)
    uint32_t reserved;
    char message[112];  // NUL-padded
};

#ifdef __cplusplus
static_assert(sizeof(FrameHeader) == 24, "wire layout");
static_assert(sizeof(HelloRecord) == 168, "wire layout");
static_assert(sizeof(WelcomeRecord) == 40, "wire layout");
static_assert(sizeof(OccupiedRecord) == 24, "wire layout");
static_assert(sizeof(TransactionRecord) == 8, "wire layout");
static_assert(sizeof(CountRecord) == 24, "wire layout");
static_assert(sizeof(IdList) == 16, "wire layout");
static_assert(sizeof(ExportRequest) == 24, "wire layout");
static_assert(sizeof(ExportReply) == 32, "wire layout");
static_assert(sizeof(HandleRecord) == 40, "wire layout");
static_assert(sizeof(MappingRecord) == 40, "wire layout");
static_assert(sizeof(SharedReply) == 40, "wire layout");
static_assert(sizeof(SharedRecord) == 48, "wire layout");
static_assert(sizeof(QuiesceRequest) == 16, "wire layout");
static_assert(sizeof(CloseRequest) == 16, "wire layout");
static_assert(sizeof(AdmitRequest) == 24, "wire layout");
static_assert(sizeof(AllowedRecord) == 16, "wire layout");
static_assert(sizeof(MadeRecord) == 16, "wire layout");
static_assert(sizeof(GateRecord) == 48, "wire layout");
static_assert(sizeof(ParkedRecord) == 24, "wire layout");
static_assert(sizeof(IncompleteRecord) == 72, "wire layout");
static_assert(sizeof(StuckRecord) == 24, "wire layout");
static_assert(sizeof(StageRequest) == 16, "wire layout");
static_assert(sizeof(CopyRequest) == 24, "wire layout");
static_assert(sizeof(CopyRecord) == 40, "wire layout");
static_assert(sizeof(SnapshotRequest) == 16, "wire layout");
static_assert(sizeof(SnapshotReply) == 16, "wire layout");
static_assert(sizeof(MovedRequest) == 16, "wire layout");
static_assert(sizeof(MovedRecord) == 32, "wire layout");
static_assert(sizeof(StatusRecord) == 80, "wire layout");
static_assert(sizeof(DeviceRecord) == 32, "wire layout");
static_assert(sizeof(UncoveredRecord) == 24, "wire layout");
static_assert(sizeof(ErrorRecord) == 128, "wire layout");
}  // namespace wire
}  // namespace gcr
#endif

#endif  // GCR_WIRE_H
