// SPDX-License-Identifier: Apache-2.0
#include "core/closed.h"

#include <string.h>

#include "core/coupled.h"
#include "core/ending.h"
#include "core/gate.h"
#include "core/observing.h"

namespace gcr {
namespace {

using namespace replies;

constexpr uint32_t kMostParked = 512;
constexpr uint32_t kMostIncomplete = 256;
constexpr uint32_t kMostMade = 256;
static_assert(sizeof(wire::FrameHeader) + sizeof(wire::GateRecord) + kMostParked * sizeof(wire::ParkedRecord) +
                      kMostIncomplete * sizeof(wire::IncompleteRecord) + kMostMade * sizeof(wire::MadeRecord) <=
                  wire::kMaxFrame,
              "one frame holds a reply");
constexpr uint32_t kLookMs = 1;  // so long a look waits for an idle device to say so
constexpr uint32_t kObserveMs = 20;
constexpr uint32_t kAdmitMs = 50;  // for all calls of a request: the agent must hear that its daemon is gone
constexpr uint32_t kPollUs = 20;
constexpr uint32_t kRun = 16;  // calls of a walk on one stream between two looks at it
constexpr uint32_t kMostRuns = 8;

// What of a look may change, to tell since when nothing has.
struct Facts {
    bool busy;
    uint32_t in_flight;
    uint32_t captures;
    uint32_t held;
    uint32_t parked;
    uint64_t calls;  // gated ones so far, of the threads that wait
    bool operator==(const Facts& other) const { return memcmp(this, &other, sizeof *this) == 0; }
};

struct Closed {
    bool idle = false;  // since a synchronisation that began after the last admission
    bool synchronizing = false;
    bool streams_known = false;
    uint64_t admitted = 0;
    uint64_t begun_at = 0;  // of `admitted`, when that synchronisation began
    uint64_t changed_us = 0;
    Facts facts{};
    Stuck stuck;

    void begin() {
        idle = synchronizing = streams_known = false;
        admitted = begun_at = 0;
        changed_us = now_us();
        memset(&facts, 0, sizeof facts);
    }

    // Nothing may be in flight before the synchronisation begins, or it might miss what that enqueues; nor may a stream be
    // captured, which a synchronisation would break.
    Failure look_at_devices() {
        if (!idle && !synchronizing && calls_in_flight() == 0 && session.vendors.captures() == 0) {
            begun_at = admitted;
            synchronizing = begin_to_synchronize();
        }
        session.synchronizer.wait(kLookMs);
        if (!synchronizing || session.synchronizer.busy()) return {};
        synchronizing = false;
        Failure failure = synchronization_result();
        idle = !failure && begun_at == admitted;
        return failure;
    }

    void look_at_streams() { streams_known = !idle && observe(&stuck, kObserveMs); }

    bool is_idle(uint64_t stream) const {
        if (idle) return true;
        if (!streams_known || stream == kNoStream) return false;
        for (uint32_t i = 0; i < stuck.count; i++)
            if (stuck.records[i].stream == stream) return false;
        return stuck.count < Stuck::kLimit;
    }

    void note(const Facts& now) {
        if (now == facts) return;
        facts = now;
        changed_us = now_us();
    }
};

Closed closed;
Waiting waiting[kMostParked];
wire::ParkedRecord parked[kMostParked];
wire::IncompleteRecord incomplete[kMostIncomplete];
wire::MadeRecord made[kMostMade];

bool stream_is_idle(uint64_t stream) {
    return closed.is_idle(stream);
}

uint32_t collect_parked(Facts* facts) {
    uint32_t count = list_parked(waiting, kMostParked);
    for (uint32_t i = 0; i < count; i++) {
        const Waiting& one = waiting[i];
        uint32_t flags = closed.is_idle(one.stream) ? wire::kParkedClear : 0;
        if (one.helper) flags |= wire::kParkedHelper;
        parked[i] = {one.signature, one.number, coupled::launched(one.signature), flags, 0};
        if (one.helper) continue;  // these come and go while a device works
        facts->parked++;
        facts->calls += one.calls;
    }
    return count;
}

wire::GateRecord look() {
    Facts facts;
    memset(&facts, 0, sizeof facts);  // padding too: it is compared
    facts.in_flight = calls_in_flight();
    facts.busy = !closed.idle;
    facts.captures = session.vendors.captures();
    facts.held = captures_waiting();
    wire::GateRecord gate{};
    gate.parked = collect_parked(&facts);
    gate.incomplete = coupled::list(incomplete, kMostIncomplete, stream_is_idle, facts.in_flight == 0);
    closed.note(facts);
    gate.transaction = session.transaction.load();
    gate.admitted = closed.admitted;
    gate.unchanged_us = now_us() - closed.changed_us;
    gate.busy = facts.busy ? 1 : 0;
    gate.in_flight = facts.in_flight;
    gate.captures = facts.captures;
    gate.held = facts.held;
    return gate;
}

// The thread waits again, with its next call.
bool came_back(const Waiting& before, Waiting* now, const Deadline& patience) {
    do {
        if (find_parked(before.number, now) && now->calls != before.calls) return true;
        sleep_us(kPollUs);
    } while (!patience.passed());
    return false;
}

bool is_local_and_clear(const Waiting& one) {
    if (one.signature != 0) return false;
    if (one.stream == kNoStream) closed.look_at_devices();
    closed.look_at_streams();
    return closed.is_idle(one.stream);
}

bool becomes_clear(const Waiting& one, const Deadline& patience) {
    while (!is_local_and_clear(one)) {
        if (one.signature != 0 || patience.passed()) return false;
        sleep_us(kPollUs);
    }
    return true;
}

// Coupled calls that other processes wait for: the records at the end of a request.
class Allowed {
  public:
    Allowed(const wire::AllowedRecord* records, uint32_t count) : records_(records), count_(count) {}

    bool may_make(uint64_t signature) const {
        for (uint32_t i = 0; i < count_; i++)
            if (records_[i].signature == signature && left(records_[i])) return true;
        return false;
    }

    // Whether the thread has made all calls of one of these signatures: the next one is its own, behind what it does first.
    bool is_owed_by(uint32_t thread) const {
        for (uint32_t i = 0; i < count_; i++)
            if (coupled::maker_of(records_[i].signature) == thread && left(records_[i])) return true;
        return false;
    }

  private:
    static bool left(const wire::AllowedRecord& one) { return coupled::launched(one.signature) < one.launched; }

    const wire::AllowedRecord* records_;
    uint32_t count_;
};

// The streams of a walk. Nothing was unfinished on them when the walk came there, and what it has enqueued since is local: no
// call has to wait for the end of the one before. Behind a wait for a coupled launch some calls are made in vain.
class Walk {
  public:
    Walk(uint32_t kind, const Allowed& allowed) : kind_(kind), allowed_(allowed) {}

    // Whether the call may be made. patience: for it to become clear.
    bool may_make(const Waiting& one, const Deadline& patience) {
        if (kind_ == wire::kWalkNot) return true;
        bool owes = allowed_.is_owed_by(one.number);
        if (kind_ != wire::kWalkLocal && !owes) return false;
        if (kind_ == wire::kWalkThrough) return true;
        if (one.signature != 0) return makes_coupled(one.signature);
        return owes || is_on_a_run(one, patience);
    }

  private:
    struct Run {
        uint64_t stream = kNoStream;
        uint32_t left = 0;
    };

    // From here on what the walk has enqueued is not local alone.
    bool makes_coupled(uint64_t signature) {
        for (Run& run : runs_) run = {};
        return allowed_.may_make(signature);
    }

    bool is_on_a_run(const Waiting& one, const Deadline& patience) {
        Run* run = run_on(one.stream);
        if (run != nullptr && run->left > 0) {
            run->left--;
            return true;
        }
        if (!becomes_clear(one, patience)) return false;
        if (run == nullptr) run = &runs_[next_++ % kMostRuns];
        *run = {one.stream, kRun - 1};
        return true;
    }

    Run* run_on(uint64_t stream) {
        for (Run& run : runs_)
            if (stream != kNoStream && run.stream == stream) return &run;
        return nullptr;
    }

    uint32_t kind_;
    const Allowed& allowed_;
    Run runs_[kMostRuns];
    uint32_t next_ = 0;
};

uint64_t let_through(const wire::AdmitRequest& wanted, const Allowed& allowed) {
    Deadline end(kAdmitMs);
    uint32_t patience_ms = wanted.patience_us / 1000 + 1;
    Waiting now{};
    uint64_t done = 0;
    Walk walk(wanted.walk, allowed);
    bool waits = find_parked(wanted.thread, &now);
    while (waits && done < wanted.calls && !end.passed() && !program_is_ending()) {
        if (!walk.may_make(now, Deadline(patience_ms))) break;
        Waiting before = now;
        closed.idle = false;
        if (!admit_one(wanted.thread)) break;
        closed.admitted++;
        done++;
        waits = done == wanted.calls || came_back(before, &now, Deadline(patience_ms));
    }
    return done;
}

}  // namespace

Outcome on_close() {
    const auto& wanted = asked<wire::CloseRequest>();
    if (wanted.close == 0) {
        enter_phase(wire::kPrepared);
        hold_captures(false);
        open_gate();
        return reply_transaction();
    }
    closed.begin();
    hold_captures(true);
    close_gate();
    enter_phase(wire::kClosed);
    return reply_transaction();
}

Outcome on_look() {
    Failure failure = closed.look_at_devices();
    if (failure) return refuse(failure);
    closed.look_at_streams();
    wire::GateRecord gate = look();
    iovec parts[] = {{&gate, sizeof gate},
                     {parked, gate.parked * sizeof parked[0]},
                     {incomplete, gate.incomplete * sizeof incomplete[0]},
                     {made, coupled::list_made(made, kMostMade) * sizeof made[0]}};
    send_reply(parts, 4);
    return kAnswered;
}

Outcome on_admit() {
    const auto& wanted = asked<wire::AdmitRequest>();
    uint32_t size = request().header.length - sizeof wanted;  // an earlier daemon sends no records
    const auto* records = reinterpret_cast<const wire::AllowedRecord*>(request().payload + sizeof wanted);
    if (wanted.walk > wire::kWalkThrough || size % sizeof records[0] != 0) return kMalformed;
    return reply_count({let_through(wanted, Allowed(records, size / sizeof records[0])), 0});
}

}  // namespace gcr
