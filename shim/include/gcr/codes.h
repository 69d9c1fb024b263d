// SPDX-License-Identifier: Apache-2.0
//
// The numbers of the gcr wire protocol: limits, frame types, phases, flags, errors, reasons. gcr/wire.h has the rules and
// the records.
//
// Mirror     core/gcr/protocol/codes.py. tests/unit/test_wire_mirror.py compares them.
#ifndef GCR_CODES_H
#define GCR_CODES_H

#ifdef __cplusplus
namespace gcr {
namespace wire {
#endif

enum { kMagic = 0x57524347u /* "GCRW" */, kVersion = 1 };
enum { kMaxFrame = 65536, kMaxDescriptors = 253 };
enum { kOccupiedDevices = 128 };  // OccupiedRecords of a page

// ---- frame types ------------------------------------------------------------------------------------------------
enum FrameType {
    kReply = 0x8000,  // or-ed with the type of the request
    kError = 0xffff,

    // agent -> daemon
    // HelloRecord; reply WelcomeRecord, an agent's with the descriptor of a page of OccupiedRecords. First frame of
    // every connection, whatever its role.
    kHello = 1,
    kReleased = 2,  // IdList: handles the program freed while others held them. The reply says all holders let go.
    kLetGo = 3,  // OccupiedRecord: out of memory on that device. The reply says that what was occupied is free.
    kDescriptor = 4,  // IdList of one: a handle flagged kHandleKept. The reply has its descriptor.

    // daemon -> agent. Each names a transaction; an agent in another transaction answers kWrongTransaction.
    kStatus = 16,  // empty; reply StatusRecord + DeviceRecord[] + UncoveredRecord[]
    // ExportRequest; reply ExportReply + HandleRecord[] + one descriptor per record, same order, but none for a record
    // flagged kHandleKept or kHandleUnexportable
    kExport = 17,
    kQuiesce = 18,  // QuiesceRequest; reply TransactionRecord; error kStuck + StuckRecord[] (gate is open again)
    kHandOver = 19,  // TransactionRecord; reply CountRecord. Every exported handle is unmapped and released.
    kImport = 20,  // IdList + one descriptor per id; reply CountRecord. Mapped at the old addresses, no access yet.
    kMap = 21,  // TransactionRecord; reply CountRecord. Access re-applied; every handle must be imported.
    kResume = 22,  // TransactionRecord; reply TransactionRecord. The gate opens; the transaction is over.
    kStage = 23,  // StageRequest + descriptors (sealed table first, then arena segments); reply TransactionRecord
    kFreeze = 24,  // TransactionRecord; reply TransactionRecord. From here on the agent makes no driver call.
    kThaw = 25,  // TransactionRecord; reply TransactionRecord. Driver calls are allowed again.
    kUnstage = 26,  // StageRequest (offset of the first descriptor wanted); reply StageRequest + descriptors
    kDrop = 27,  // TransactionRecord; reply TransactionRecord. Staged descriptors, if any, are closed.
    kMappings = 28,  // ExportRequest (after_id is a cursor); reply ExportReply + MappingRecord[]
    kDiscard = 29,  // TransactionRecord; reply CountRecord. What was imported is unmapped again: handed over.
    // IdList; reply CountRecord. Instead of kImport: new memory at the old addresses, without access yet, its bytes
    // undefined. Error kNoRoom: nothing of this frame is kept.
    kCreate = 30,
    // CopyRequest + CopyRecord[] + arena segments; reply CountRecord: so many records were done, all or at least one
    // when the time was up. Device memory to segments, gate closed.
    kCopyOut = 31,
    kCopyIn = 32,  // the same the other way, into memory that kImport or kCreate brought back
    // SnapshotRequest; reply SnapshotReply. A step of the runtime's own snapshot of its process, as only the process
    // itself can make it: frozen, memory handed over. Or a look, at any time.
    kSnapshot = 33,
    // MovedRequest + MovedRecord[]; reply TransactionRecord. Devices whose place others took: kStatus names those from
    // kResume on. Each request replaces the one before, kDiscard takes it back.
    kMoved = 34,
    kBegin = 35,  // TransactionRecord; reply TransactionRecord. What kWelcomeWait held back goes on.
    // IdList; reply CountRecord. Gate closed: handles flagged kHandleKept get new memory, one at a time, with the same
    // bytes and addresses. kExport gives descriptors of it then. Error kNoRoom. Whatever fails, no byte has moved.
    kRehome = 36,
    kLeave = 37,  // TransactionRecord; reply TransactionRecord. See core/leaving.h
    kClose = 38,  // CloseRequest; reply TransactionRecord. The gate closes, or opens again; nothing is waited for.
    // TransactionRecord; reply GateRecord + ParkedRecord[] + IncompleteRecord[] + MadeRecord[]. Gate closed by kClose.
    kLook = 39,
    kAdmit = 40,  // AdmitRequest + AllowedRecord[]; reply CountRecord: calls that the thread has been let through with
    // ExportRequest (after_id is a cursor); reply SharedReply + SharedRecord[]: memory of this process that others hold,
    // and memory of others that it holds. kExport and kMappings list none of the latter, and kHandOver releases it too.
    kShared = 41,
    // between gcr's own Python processes: a JSON object as payload
    kCommand = 64,  // client -> daemon; reply JSON
    kProgress = 65,  // daemon -> client, unanswered, same `request` as the command
    kCall = 66,  // daemon <-> supervisor, worker, control helper; reply JSON; may carry descriptors
    kNotice = 67,  // either way, unanswered
};

enum WelcomeFlag {
    // The job is off its devices, or on its way. An agent that said kFlagFresh keeps its gate closed until kBegin, or
    // until a welcome without this flag.
    kWelcomeWait = 1,
};

enum Role { kAgent = 1, kSupervisor = 2, kClient = 3 };
enum Vendor { kVendorNone = 0, kNvidia = 1, kAmd = 2, kAscend = 3, kThirdParty = 4 };

// Where an agent stands. It is the truth about its process; a new daemon starts from it.
enum AgentPhase {
    kRunning = 0,
    kPrepared = 1,  // exports exist, the program runs
    kQuiesced = 2,  // gate closed, devices idle, memory mapped
    kHandedOver = 3,  // gate closed, exported memory unmapped and released
    kMapped = 4,  // gate closed, memory imported and mapped again
    kClosed = 5,  // between kPrepared and kQuiesced: gate closed by kClose; the daemon decides which calls pass it
};
enum AgentFlag {
    kFlagStaged = 1,  // holds the sealed table and the arena segments
    kFlagFrozen = 2,  // makes no driver call
    kFlagSimulated = 4,  // the driver below says it is simulated
    kFlagUnexportable = 8,  // a device exports no descriptors, or takes none: bytes leave by kCopyOut alone
    kFlagMapsOver = 16,  // this runtime keeps what was released while its address is kept; found out at a hand-over
    kFlagReservesAgain = 32,  // and even under another mapping: addresses are given up for an instant
    kFlagFresh = 64,  // no call of this process has gone on to a driver yet, but for the one that starts it
    kFlagEnding = 128,  // in exit(), or its driver has shut down: it makes no driver call, and is not suspended
    kFlagReturned = 256,  // it was away (kLeave) since it was suspended: an image has the bytes, and none is staged
};

// A snapshot by the runtime itself: RUNNING -Lock-> LOCKED -Backup-> SAVED -Restore-> LOCKED -Unlock-> RUNNING, and
// Unlock from SAVED.
enum SnapshotStep {
    kStepLook = 0,
    kStepLock = 1,
    kStepBackup = 2,
    kStepRestore = 3,
    kStepUnlock = 4,
};
enum SnapshotPhase {
    kSnapshotUnknown = 0,  // no vendor of this process has such calls
    kSnapshotRunning = 1,
    kSnapshotLocked = 2,
    kSnapshotSaved = 3,
};

enum ErrorCode {
    kBadFrame = 1,  // does not parse
    kWrongVersion = 2,  // no protocol version in common
    kWrongPhase = 3,  // the request is illegal in this phase; nothing was done
    kWrongTransaction = 4,  // another transaction is open; nothing was done
    kStuck = 5,  // deadline passed before the devices were idle; the gate is open, the program runs
    kDriver = 6,  // a driver call failed; vendor_error says which way
    kNoDescriptors = 7,  // the process has no descriptor left
    kUnknownHandle = 8,  // an id that is not (or no longer) alive
    kIncomplete = 9,  // kMap before every handle was imported
    kRefused = 10,  // state the driver would take and never give back
    kNoMemory = 11,  // host memory
    kNotPermitted = 12,  // foreign uid, wrong job token, stale pid
    kNoRoom = 13,  // device memory
    kAddressTaken = 14,  // by another thread, in the instant it was given up. kResume's gate opens when it is free
    kDriverGone = 15,  // the program is in exit(), or its driver has shut down. kResume is legal then in every phase
};

enum HandleFlag {
    // The handle came to this process by import (a restore, a rollback). r580 refuses to export it a second time
    // (INVALID_VALUE), so the process that gave it keeps the descriptor for as long as the handle lives.
    kHandleKept = 1,
    // The runtime gives no descriptor for it: EXPORT lists it without one, and its bytes leave by kCopyOut.
    kHandleUnexportable = 2,
};

enum SharedFlag {
    kSharedForeign = 1,  // another process's, which this one holds; without it: this one's, which another may hold
};

// A thread *owes* a coupled call where it has made all of a signature so far, and more of these are allowed.
enum WalkKind {
    kWalkNot = 0,  // any call
    kWalkLocal = 1,  // allowed coupled calls, and local ones, each once its stream is idle or while the thread owes one
    kWalkOwed = 2,  // the same, only while the thread owes a call
    kWalkThrough = 3,  // any call, only while the thread owes one
};
enum { kSeveralThreads = 0xffffffffu };

enum ParkedFlag {
    kParkedClear = 1,  // nothing is unfinished on the stream of the call; of a call without one, on no device
    kParkedHelper = 2,  // a communication library's own thread
};

// Why bytes are not handed over. The driver carries some, slowly. With most others it would take the process and never
// give it back (docs/design.md): UncoveredRecord.refuse says so, and core/coverage.cpp which.
enum Reason {
    kReasonPool = 1,  // stream-ordered allocation
    kReasonArray = 2,  // arrays, mipmaps, textures
    kReasonCapture = 3,  // allocated inside a stream capture or graph
    kReasonManaged = 4,  // unified (UVM) memory
    kReasonMulticast = 5,
    kReasonIpcExport = 6,  // cuIpcGetMemHandle / hipIpcGetEventHandle
    kReasonIpcImport = 7,  // cuIpcOpenMemHandle / hipIpcOpenEventHandle
    kReasonShareableExport = 8,  // the program exported a handle itself
    kReasonShareableImport = 9,
    kReasonDmaBuf = 10,  // cuMemGetHandleForAddressRange
    kReasonHostNuma = 11,  // physical memory on the host
    kReasonFabric = 12,
    kReasonExternal = 13,  // external memory and semaphores, graphics interop
    kReasonSparse = 14,  // sparse arrays over the program's handles
    kReasonUnexportable = 15,  // the driver would not make this allocation exportable
    kReasonGreenContext = 16,  // green contexts and devices carved into resources
    kReasonBeforeShim = 17,  // allocated through a pointer the shim never saw
    kReasonIpcEvent = 18,  // cuIpcGetEventHandle / cuIpcOpenEventHandle: no bytes
    kReasonCount = 19,
};

// The checkpoints that a Reason rules out. A daemon that does not know the value rules out all of them.
enum Refuse {
    kRefuseNone = 0,
    kRefuseAlways = 1,
    kRefuseWhole = 2,  // a checkpoint after which the process may end, and come back from an image
};

#ifdef __cplusplus
}  // namespace wire
}  // namespace gcr
#endif

#endif  // GCR_CODES_H
