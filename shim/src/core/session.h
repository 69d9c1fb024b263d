// SPDX-License-Identifier: Apache-2.0
//
// What the parts of the agent share: agent.cpp (connection, fork), requests.cpp (what the daemon asks), quiesce.cpp.
// session.cpp: the phases.
#ifndef GCR_CORE_SESSION_H
#define GCR_CORE_SESSION_H

#include "core/channel.h"
#include "core/crew.h"
#include "core/occupied.h"
#include "core/questions.h"
#include "core/releases.h"
#include "core/staged.h"
#include "core/vendors.h"

namespace gcr {

// Everything an agent's thread works with. Made once, never destroyed: the process may end at any instant.
struct Session {
    Vendors vendors;
    Channel channel;
    Questions questions;
    Releases releases;
    Staged staged;
    Occupied occupied;
    Lock batch_lock;  // held from choosing what to export until it was sent

    std::atomic<uint32_t> phase{wire::kRunning};  // release by the agent's thread; acquire by program threads
    std::atomic<uint64_t> transaction{0};
    std::atomic<bool> begun{false};  // a call of the program has gone on to a driver; see let_begin()
    std::atomic<bool> silent{false};  // relaxed: a question was not answered in time, and none since
    uint64_t generation = 0;
    bool frozen = false;

    Frame* frame = nullptr;    // the request being answered
    Frame* parked = nullptr;   // a request that arrived while the agent waited for replies
    bool has_parked = false;
    bool lost = false;         // the connection ended while a request was being done
    bool leaving = false;      // see leaving.h
    bool returned = false;     // it was away in this transaction: an image has what it has not on a device
    Crew synchronizer;
    Crew observer;
};

extern Session session;

inline bool in_phase(wire::AgentPhase phase) {
    return session.phase.load(std::memory_order_acquire) == phase;
}
void enter_phase(wire::AgentPhase phase);
uint32_t session_flags();
void end_transaction();  // nothing exported any more; the gate opens last
// The program's first call of a driver may go on. Until then a welcome may close the gate in front of it.
void let_begin();
void open_when_all_is_back();  // once more, after a transaction that ended with an address lost

// To the thread that asked; the descriptors are its own, or closed.
void deliver_reply(Frame* reply);

// Reads what has arrived within timeout_us. Replies are delivered; one request is set aside. False: connection lost.
bool listen_for_replies(uint32_t timeout_us);

// Answers the request in session.frame. False: it was malformed, the connection must close.
bool answer_request();

// The gate closed and every device idle, or a failure with the gate open again and the stuck streams in `stuck`.
struct Stuck {
    static constexpr uint32_t kLimit = 64;
    uint32_t count = 0;
    wire::StuckRecord records[kLimit] = {};
};
Failure quiesce(uint32_t deadline_ms, uint32_t pulse_ms, Stuck* stuck);

}  // namespace gcr

#endif  // GCR_CORE_SESSION_H
