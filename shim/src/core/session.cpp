// SPDX-License-Identifier: Apache-2.0
#include "core/session.h"

#include "core/ending.h"
#include "core/gate.h"
#include "device/state.h"

namespace gcr {

void enter_phase(wire::AgentPhase phase) {
    session.phase.store(phase, std::memory_order_release);
}

uint32_t session_flags() {
    uint32_t flags = 0;
    if (session.staged.complete()) flags |= wire::kFlagStaged;
    if (session.frozen) flags |= wire::kFlagFrozen;
    if (!session.begun.load()) flags |= wire::kFlagFresh;
    if (session.returned) flags |= wire::kFlagReturned;
    if (program_is_ending()) flags |= wire::kFlagEnding;
    if (!session.vendors.exports()) flags |= wire::kFlagUnexportable;
    if (session.vendors.simulated()) flags |= wire::kFlagSimulated;
    if (session.vendors.releases_by(device::Release::kMapOver)) flags |= wire::kFlagMapsOver;
    if (session.vendors.releases_by(device::Release::kReserveAgain)) flags |= wire::kFlagReservesAgain;
    return flags;
}

void let_begin() {
    session.begun.store(true);
    if (in_phase(wire::kRunning) || in_phase(wire::kPrepared)) open_gate();  // in the others a transaction opens it
}

void end_transaction() {
    session.vendors.end_transaction();
    session.transaction.store(0);
    session.returned = false;
    enter_phase(wire::kRunning);
    hold_captures(false);
    open_when_all_is_back();
}

// Memory whose address was lost at a hand-over waits for it, and so does the program.
void open_when_all_is_back() {
    if (!in_phase(wire::kRunning)) return;
    Driving driving;
    if (!driving.allowed() || session.vendors.regain_addresses()) open_gate();
}

void deliver_reply(Frame* reply) {
    session.silent.store(false, std::memory_order_relaxed);
    if (reply->header.type == wire::kError)
        session.releases.refused(reply->header.request);
    else
        session.releases.heard(reply->header.request);
    int descriptor = reply->descriptors == 0 ? -1 : reply->descriptor[reply->descriptors - 1];
    if (session.questions.deliver(reply->header.request, descriptor)) reply->descriptors--;
    reply->close_descriptors();
}

bool listen_for_replies(uint32_t timeout_us) {
    if (session.has_parked) {  // one request is set aside already; the rest stays in the socket
        sleep_us(timeout_us);
        return !session.lost;
    }
    Receive received = session.channel.receive(session.parked, timeout_us);
    if (received == Receive::kLost) session.lost = true;
    if (received != Receive::kFrame) return !session.lost;
    if (session.parked->is_reply()) {
        deliver_reply(session.parked);
    } else {
        session.has_parked = true;
    }
    return true;
}

}  // namespace gcr
