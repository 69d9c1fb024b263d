// SPDX-License-Identifier: Apache-2.0
//
// Requests: what a daemon may ask, in which phases, and the answer. One row of kRules a request; nothing is done
// before the row allowed it. Runs on the agent's thread.
#include <stdio.h>
#include <string.h>

#include "core/closed.h"
#include "core/copies.h"
#include "core/ending.h"
#include "core/gate.h"
#include "core/leaving.h"
#include "core/looking.h"
#include "core/replies.h"
#include "core/session.h"
#include "interpose/bypass.h"

namespace gcr {
namespace {

using namespace replies;

constexpr uint32_t kMaxQuiesceMs = 600000;

// ---- there ----------------------------------------------------------------------------------------------------

void close_exported(const ExportBatch& batch) {
    for (uint32_t i = 0; i < batch.descriptor_count; i++) {
        OwnedFd file;
        file.adopt(batch.descriptors[i]);
        file.close();
    }
}

Outcome send_batch(const ExportBatch& batch) {
    wire::ExportReply head{
        session.transaction.load(), batch.last_id, batch.count, batch.more, sizeof(wire::HandleRecord), 0};
    iovec parts[] = {{&head, sizeof head},
                     {const_cast<wire::HandleRecord*>(batch.records), batch.count * sizeof batch.records[0]}};
    send_reply(parts, 2, batch.descriptors, batch.descriptor_count);
    close_exported(batch);  // sent or not: the target holds no descriptor of its own memory
    return kAnswered;
}

Outcome refuse_bypass(const char* file) {
    char message[sizeof(wire::ErrorRecord::message)];
    snprintf(message, sizeof message, "RTLD_DEEPBIND: %s calls the driver past gcr", file);
    return refuse(wire::kRefused, message);
}

Outcome on_export() {
    static ExportBatch batch;
    const auto& wanted = asked<wire::ExportRequest>();
    if (!session.vendors.all_addresses())
        return refuse(wire::kAddressTaken,
                      "another mapping still has an address of its memory; the program waits for it");
    bool opens = in_phase(wire::kRunning);
    char file[64];
    if (opens && interpose::find_bypass(file, sizeof file)) return refuse_bypass(file);
    Guard guard(session.batch_lock);  // a free of one of these waits until the daemon was told of it
    if (opens) {
        session.transaction.store(wanted.transaction);
        enter_phase(wire::kPrepared);
    }
    batch.limit = wanted.limit < wire::kMaxDescriptors ? wanted.limit : static_cast<uint32_t>(wire::kMaxDescriptors);
    Failure failure = session.vendors.export_after(wanted.after_id, &batch);
    if (!failure) return send_batch(batch);
    if (opens) end_transaction();
    return refuse(failure);
}

Outcome on_quiesce() {
    static Stuck stuck;
    auto wanted = asked<wire::QuiesceRequest>();
    stuck.count = 0;
    uint32_t deadline = wanted.deadline_ms < kMaxQuiesceMs ? wanted.deadline_ms : kMaxQuiesceMs;
    Failure failure = quiesce(deadline, wanted.pulse_ms, &stuck);
    if (failure) enter_phase(wire::kPrepared);  // its gate is open
    if (failure) return refuse(failure, &stuck);
    enter_phase(wire::kQuiesced);
    return reply_transaction();
}

Outcome copy(Direction direction) {
    const auto& wanted = asked<wire::CopyRequest>();
    if (request().descriptors_lost) return refuse(wire::kNoDescriptors, "no descriptor left for a segment");
    uint64_t length = sizeof wanted + static_cast<uint64_t>(wanted.count) * wanted.record_size;
    if (wanted.record_size < sizeof(wire::CopyRecord) || request().header.length != length) return kMalformed;
    Tally done;
    Failure failure = copy_pieces(direction, wanted, request().payload + sizeof wanted, request().descriptor,
                                  request().descriptors, &done);
    return failure ? refuse(failure) : reply_count(done);
}

Outcome on_copy_out() {
    return copy(Direction::kOut);
}

Outcome on_copy_in() {
    return copy(Direction::kIn);
}

Outcome on_rehome() {
    const auto& list = asked<wire::IdList>();
    if (request().header.length != sizeof list + list.count * sizeof(uint64_t)) return kMalformed;
    const auto* ids = reinterpret_cast<const uint64_t*>(request().payload + sizeof list);
    Tally tally;
    Failure failure = session.vendors.rehome(ids, list.count, &tally);
    return failure ? refuse(failure) : reply_count(tally);
}

Outcome on_hand_over() {
    Tally tally;
    Failure failure = session.vendors.hand_over(&tally);
    if (failure) return refuse(failure);
    enter_phase(wire::kHandedOver);
    return reply_count(tally);
}

// The devices are idle and nothing is enqueued: whatever still waits in the driver is on its way out.
constexpr uint32_t kLeaveMs = 2000;

Outcome on_freeze() {
    if (!shut_for_freeze(kLeaveMs)) return refuse(wire::kStuck, "a call that waits did not leave the driver");
    session.frozen = true;
    return reply_transaction();
}

Outcome on_stage() {
    const auto& part = asked<wire::StageRequest>();
    if (request().descriptors_lost) return refuse(wire::kNoDescriptors, "no descriptor left for a staged segment");
    uint32_t count = request().descriptors;
    session.frame->descriptors = 0;  // staged takes them
    if (session.staged.add(part.transaction, part.offset, part.total, request().descriptor, count))
        return reply_transaction();
    return refuse(wire::kBadFrame, "these are not the next descriptors of the set");
}

// The look makes no call that could wait, whatever the phase.
Outcome on_snapshot() {
    const auto& wanted = asked<wire::SnapshotRequest>();
    if (wanted.step > wire::kStepUnlock) return refuse(wire::kBadFrame, "no such step of a snapshot");
    if (wanted.step != wire::kStepLook) {
        if (!session.frozen || !in_phase(wire::kHandedOver)) return refuse(wire::kWrongPhase, "illegal in this phase");
        if (wanted.transaction != session.transaction.load())
            return refuse(wire::kWrongTransaction, "another transaction is open");
        Failure failure = session.vendors.snapshot(static_cast<wire::SnapshotStep>(wanted.step));
        if (failure) return refuse(failure);
    }
    return reply(wire::SnapshotReply{session.transaction.load(), session.vendors.snapshot_phase(), 0});
}

Outcome on_leave() {
    Failure failure = begin_to_leave();
    return failure ? refuse(failure) : reply_transaction();
}

// ---- and back -------------------------------------------------------------------------------------------------

Outcome on_unstage() {
    const auto& part = asked<wire::StageRequest>();
    int descriptors[wire::kMaxDescriptors];
    uint32_t count = session.staged.copy(part.offset, wire::kMaxDescriptors, descriptors);
    wire::StageRequest head{part.transaction, part.offset, session.staged.total()};
    iovec parts[] = {{&head, sizeof head}};
    send_reply(parts, 1, descriptors, count);
    return kAnswered;
}

Outcome on_drop() {
    wire::TransactionRecord record{session.staged.transaction()};
    session.staged.drop();
    return reply(record);
}

Outcome on_thaw() {
    session.frozen = false;
    open_after_thaw();
    return reply_transaction();
}

Outcome on_import() {
    const auto& list = asked<wire::IdList>();
    if (request().descriptors_lost) return refuse(wire::kNoDescriptors, "no descriptor left for memory to come back");
    if (list.count != request().descriptors || request().header.length != sizeof list + list.count * sizeof(uint64_t))
        return kMalformed;
    uint64_t ids[wire::kMaxDescriptors];
    memcpy(ids, request().payload + sizeof list, list.count * sizeof ids[0]);
    session.frame->descriptors = 0;  // import takes them
    Tally tally;
    Failure failure = session.vendors.import(ids, request().descriptor, list.count, &tally);
    return failure ? refuse(failure) : reply_count(tally);
}

Outcome on_create() {
    const auto& list = asked<wire::IdList>();
    if (request().header.length != sizeof list + list.count * sizeof(uint64_t)) return kMalformed;
    const auto* ids = reinterpret_cast<const uint64_t*>(request().payload + sizeof list);
    Tally tally;
    Failure failure = session.vendors.create(ids, list.count, &tally);
    return failure ? refuse(failure) : reply_count(tally);
}

Outcome on_map() {
    Tally tally;
    Failure failure = session.vendors.map(&tally);
    if (failure) return refuse(failure);
    enter_phase(wire::kMapped);
    return reply_count(tally);
}

Outcome on_moved() {
    const auto& wanted = asked<wire::MovedRequest>();
    uint64_t length = sizeof wanted + static_cast<uint64_t>(wanted.count) * wanted.record_size;
    if (wanted.record_size < sizeof(wire::MovedRecord) || request().header.length != length) return kMalformed;
    session.vendors.move_devices(request().payload + sizeof wanted, wanted.count, wanted.record_size);
    return reply_transaction();
}

Outcome on_begin() {
    let_begin();
    return reply_transaction();
}

Outcome on_discard() {
    Tally tally;
    Failure failure = session.vendors.discard(&tally);
    if (failure) return refuse(failure);
    session.vendors.move_devices(nullptr, 0, 0);
    enter_phase(wire::kHandedOver);
    return reply_count(tally);
}

Outcome on_resume() {
    wire::TransactionRecord over{session.transaction.load()};
    if (in_phase(wire::kMapped)) session.generation++;
    end_transaction();
    return reply(over);
}

// ---- requests and their phases --------------------------------------------------------------------------------

constexpr uint32_t in(wire::AgentPhase phase) {
    return 1u << phase;
}
constexpr uint32_t kAnyPhase = ~0u;

enum Names { kNoTransaction, kOpens, kCurrent, kOfTheStaged, kOfTheStagedIfAny };

struct Rule {
    uint16_t type;
    uint16_t size;
    uint32_t phases;
    bool while_frozen;
    bool descriptors;
    Names names;
    Outcome (*act)();
};

using wire::kClosed;
using wire::kHandedOver;
using wire::kMapped;
using wire::kPrepared;
using wire::kQuiesced;
using wire::kRunning;

const Rule kRules[] = {
    {wire::kStatus, 0, kAnyPhase, true, false, kNoTransaction, on_status},
    {wire::kMappings, sizeof(wire::ExportRequest), kAnyPhase & ~in(kRunning), true, false, kCurrent, on_mappings},
    {wire::kShared, sizeof(wire::ExportRequest), kAnyPhase, true, false, kNoTransaction, on_shared},
    {wire::kExport, sizeof(wire::ExportRequest), in(kRunning) | in(kPrepared) | in(kQuiesced), false, false, kOpens,
     on_export},
    {wire::kClose, sizeof(wire::CloseRequest), in(kPrepared) | in(kClosed) | in(kQuiesced), false, false, kCurrent,
     on_close},
    {wire::kLook, sizeof(wire::TransactionRecord), in(kClosed), false, false, kCurrent, on_look},
    {wire::kAdmit, sizeof(wire::AdmitRequest), in(kClosed), false, false, kCurrent, on_admit},
    {wire::kQuiesce, sizeof(wire::QuiesceRequest), in(kPrepared) | in(kClosed), false, false, kCurrent, on_quiesce},
    {wire::kRehome, sizeof(wire::IdList), in(kQuiesced), false, false, kCurrent, on_rehome},
    {wire::kHandOver, sizeof(wire::TransactionRecord), in(kQuiesced), false, false, kCurrent, on_hand_over},
    {wire::kImport, sizeof(wire::IdList), in(kHandedOver), false, true, kCurrent, on_import},
    {wire::kCopyOut, sizeof(wire::CopyRequest), in(kQuiesced), false, true, kCurrent, on_copy_out},
    {wire::kCreate, sizeof(wire::IdList), in(kHandedOver), false, false, kCurrent, on_create},
    {wire::kCopyIn, sizeof(wire::CopyRequest), in(kHandedOver), false, true, kCurrent, on_copy_in},
    {wire::kMap, sizeof(wire::TransactionRecord), in(kHandedOver), false, false, kCurrent, on_map},
    {wire::kMoved, sizeof(wire::MovedRequest), in(kHandedOver), false, false, kCurrent, on_moved},
    {wire::kBegin, sizeof(wire::TransactionRecord), kAnyPhase, true, false, kNoTransaction, on_begin},
    {wire::kDiscard, sizeof(wire::TransactionRecord), in(kHandedOver) | in(kMapped), false, false, kCurrent,
     on_discard},
    {wire::kResume, sizeof(wire::TransactionRecord), in(kPrepared) | in(kClosed) | in(kQuiesced) | in(kMapped), false,
     false, kCurrent, on_resume},
    {wire::kFreeze, sizeof(wire::TransactionRecord), in(kHandedOver), false, false, kCurrent, on_freeze},
    {wire::kThaw, sizeof(wire::TransactionRecord), in(kHandedOver), true, false, kCurrent, on_thaw},
    {wire::kSnapshot, sizeof(wire::SnapshotRequest), kAnyPhase, true, false, kNoTransaction, on_snapshot},
    {wire::kLeave, sizeof(wire::TransactionRecord), in(kHandedOver), true, false, kCurrent, on_leave},
    {wire::kStage, sizeof(wire::StageRequest), in(kQuiesced) | in(kHandedOver), true, true, kCurrent, on_stage},
    {wire::kUnstage, sizeof(wire::StageRequest), kAnyPhase, true, false, kOfTheStaged, on_unstage},
    {wire::kDrop, sizeof(wire::TransactionRecord), kAnyPhase, true, false, kOfTheStagedIfAny, on_drop},
};

const Rule* rule_for(uint16_t type) {
    for (const Rule& rule : kRules)
        if (rule.type == type) return &rule;
    return nullptr;
}

bool right_transaction(const Rule& rule, uint64_t named) {
    switch (rule.names) {
        case kNoTransaction:
            return true;
        case kOpens:
            return named != 0 && (in_phase(kRunning) || named == session.transaction.load());
        case kCurrent:
            return in_phase(kRunning) || named == session.transaction.load();  // running: wrong phase
        case kOfTheStaged:
            return named == session.staged.transaction();
        case kOfTheStagedIfAny:  // it left them as its process was saved, or an image has the bytes
            return named == session.staged.transaction() || session.staged.total() == 0;
    }
    return false;
}

// Thaw is legal when frozen and nothing else; the rest when thawed, unless the row says both. The gate of a program whose
// memory cannot come back opens from every phase: its calls are refused by the driver.
bool right_phase(const Rule& rule) {
    uint32_t now = 1u << session.phase.load(std::memory_order_relaxed);
    uint32_t legal = rule.phases;
    if (rule.type == wire::kResume && program_is_ending()) legal = kAnyPhase & ~in(kRunning);
    if ((legal & now) == 0) return false;
    if (rule.type == wire::kThaw) return session.frozen;
    return !session.frozen || rule.while_frozen;
}

bool needs_driver(const Rule& rule) {
    return !rule.while_frozen && rule.type != wire::kResume;
}

uint64_t named_transaction() {
    uint64_t named = 0;  // every record that names a transaction begins with it
    if (request().header.length >= sizeof named) memcpy(&named, request().payload, sizeof named);
    return named;
}

}  // namespace

bool answer_request() {
    Driving driving;
    if (driving.allowed() && !session.frozen) session.vendors.enter_new();
    const Rule* rule = rule_for(request().header.type);
    if (rule == nullptr) return refuse(wire::kBadFrame, "no such request in this version") == kAnswered;
    bool stray = !rule->descriptors && (request().descriptors > 0 || request().descriptors_lost);
    if (stray || request().header.length < rule->size) return false;
    if (!right_transaction(*rule, named_transaction()))
        return refuse(wire::kWrongTransaction, "another transaction is open") == kAnswered;
    if (!right_phase(*rule)) return refuse(wire::kWrongPhase, "illegal in this phase") == kAnswered;
    if (needs_driver(*rule) && !driving.allowed()) return refuse(kProgramEnds) == kAnswered;
    return rule->act() == kAnswered;
}

}  // namespace gcr
