// SPDX-License-Identifier: Apache-2.0
//
// A guest's rules. This code lives in the user's process:
//   never exit, abort, print, or touch a signal · keep errno · never allocate or lock on a launch path · no daemon: inert
//   no wait without a deadline · close no descriptor but our own · between freeze and thaw, no driver call
//   whatever fails: answer with an error, leave the program running
#include "core/agent.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "core/coupled.h"
#include "core/coverage.h"
#include "core/ending.h"
#include "core/gate.h"
#include "core/identity.h"
#include "core/leaving.h"
#include "core/lending.h"
#include "core/session.h"
#include "core/threads.h"
#include "core/ticket.h"

#ifndef GCR_VERSION
#define GCR_VERSION "0"
#endif
static_assert(sizeof GCR_VERSION <= sizeof(gcr::wire::HelloRecord::version), "the version fits its field");

namespace gcr {

Session session;

namespace {

constexpr uint32_t kListenUs = 500000;  // also how soon a descriptor closed by the program is noticed
constexpr uint32_t kRegainUs = 5000;  // between two attempts to have a lost address again
constexpr uint32_t kHelloMs = 5000;  // so long the program's first call waits, too
constexpr uint32_t kFastRetryMs = 100;
constexpr uint32_t kSlowRetryMs = 1000;
constexpr uint64_t kFastRetriesForMs = 10000;
constexpr uint32_t kAnswerMs = 10000;
constexpr uint32_t kNoticeMs = 2 * kListenUs / 1000;  // by when a connection that takes nothing was given up
constexpr uint32_t kWorkersEndMs = 3000;  // by when a worker has ended that lost its daemon, and its memory is free

enum Life : uint32_t { kUnborn, kBeingBorn, kAlive, kInert };
std::atomic<uint32_t> life{
    kUnborn};  // futex word of threads that make a first call beside the one that starts the agent
std::atomic<uint32_t> fork_handled{0};

char socket_path[PATH_MAX];
long trusted_user = -1;  // the user with a daemon that is obeyed besides our own user's and root's
char job_name[sizeof(wire::HelloRecord::job)];
char job_token[sizeof(wire::HelloRecord::token)];

// NUL-padded, as the wire wants it; a value that does not fit is cut.
void copy_environment(const char* name, char* target, size_t size) {
    const char* value = getenv(name);
    memset(target, 0, size);
    if (value != nullptr) memcpy(target, value, strnlen(value, size));
}

// A user id in decimal; -1 for anything else.
long user_from_environment(const char* name) {
    const char* value = getenv(name);
    long user = 0;
    if (value == nullptr || *value == '\0') return -1;
    for (; *value != '\0'; value++) {
        if (*value < '0' || *value > '9' || user > 0xffffffffl) return -1;
        user = user * 10 + (*value - '0');
    }
    return user < 0xffffffffl ? user : -1;
}

bool read_environment() {
    const char* path = getenv("GCR_SOCKET");
    if (path == nullptr || *path == '\0' || strlen(path) >= sizeof socket_path) return false;
    strcpy(socket_path, path);
    trusted_user = user_from_environment("GCR_DAEMON_UID");
    copy_environment("GCR_JOB", job_name, sizeof job_name);
    copy_environment("GCR_TOKEN", job_token, sizeof job_token);
    name_mark(socket_path, job_token);
    const char* share = getenv("GCR_SHARE");
    give_tickets(share == nullptr || strcmp(share, "driver") != 0);
    return true;
}

wire::HelloRecord hello() {
    wire::HelloRecord record{};
    record.role = wire::kAgent;
    record.oldest = record.newest = wire::kVersion;
    record.vendor = session.vendors.first();
    record.phase = session.phase.load(std::memory_order_relaxed);
    record.flags = session_flags();
    record.pid_label = static_cast<uint32_t>(current_pid());
    record.transaction = session.transaction.load();
    record.generation = session.generation;
    memcpy(record.job, job_name, sizeof record.job);
    memcpy(record.token, job_token, sizeof record.token);
    memcpy(record.version, GCR_VERSION, sizeof GCR_VERSION - 1);
    return record;
}

bool welcomed(const Frame& frame, uint64_t request) {
    const auto* welcome = frame.record<wire::WelcomeRecord>();
    return frame.header.request == request && frame.header.type == (wire::kReply | wire::kHello) &&
           welcome != nullptr && welcome->version == wire::kVersion;
}

// At what the daemon says is occupied; without a descriptor left for that, at nothing.
void begin_to_look(const Frame& welcome) {
    session.occupied.adopt(welcome.descriptors == 1 ? welcome.descriptor[0] : -1);
    session.silent.store(false, std::memory_order_relaxed);
}

// A job that is off its devices has the first call of a new process of it wait.
void heed(const Frame& welcome) {
    if (session.begun.load()) return;
    if ((welcome.record<wire::WelcomeRecord>()->flags & wire::kWelcomeWait) != 0)
        close_gate();
    else
        let_begin();
}

bool greet(uint32_t limit_ms) {
    constexpr uint64_t kRequest = 1;
    wire::HelloRecord record = hello();
    iovec part{&record, sizeof record};
    if (!session.channel.send(wire::kHello, kRequest, &part, 1)) return false;
    Deadline deadline(limit_ms);
    while (!deadline.passed()) {
        Receive received = session.channel.receive(session.frame, 100000);
        if (received == Receive::kNothing) continue;
        if (received == Receive::kLost) return false;
        bool welcome = welcomed(*session.frame, kRequest);
        if (welcome) begin_to_look(*session.frame);
        if (welcome) heed(*session.frame);
        session.frame->close_descriptors();
        return welcome;
    }
    return false;
}

void connect_to_daemon() {
    uint64_t began = now_ms();
    while (true) {
        if (session.channel.connect(socket_path, trusted_user)) {
            if (greet(kHelloMs)) return;
            session.channel.close();
            session.releases.lose();  // of what was freed meanwhile
        }
        bool fast = now_ms() - began < kFastRetriesForMs;
        if (!session.vendors.all_addresses()) open_when_all_is_back();
        sleep_us((fast ? kFastRetryMs : kSlowRetryMs) * 1000);
    }
}

// The next request into session.frame; replies are delivered on the way. False: the connection is lost.
bool next_request() {
    if (session.has_parked) {
        Frame* frame = session.frame;
        session.frame = session.parked;
        session.parked = frame;
        session.has_parked = false;
        return true;
    }
    while (true) {
        bool whole = session.vendors.all_addresses();
        if (!whole) open_when_all_is_back();
        Receive received = session.channel.receive(session.frame, whole ? kListenUs : kRegainUs);
        if (received == Receive::kLost) return false;
        session.releases.say_unsaid();
        if (received == Receive::kNothing) continue;
        if (!session.frame->is_reply()) return true;
        deliver_reply(session.frame);
    }
}

void serve() {
    session.lost = false;
    while (!session.lost && next_request()) {
        bool parsed = answer_request();
        session.frame->close_descriptors();
        if (!parsed || session.leaving) return;
    }
}

// No daemon leads any more. What was only prepared is over; what is suspended waits for the next daemon.
void lose_connection() {
    session.channel.close();
    session.releases.lose();
    if (session.has_parked) session.parked->close_descriptors();
    session.has_parked = false;
    if (in_phase(wire::kPrepared) || in_phase(wire::kClosed) || in_phase(wire::kQuiesced)) end_transaction();
    session.occupied.lose(kWorkersEndMs);  // before the thread that asked is told that no daemon is there
    session.questions.abandon();
}

void meet_vendors() {
    Driving driving;
    if (driving.allowed()) session.vendors.enter_new();
}

void* live(void*) {
    meet_vendors();
    while (true) {
        if (!session.channel.open()) connect_to_daemon();
        serve();
        if (session.leaving) close_own();
        lose_connection();
        stay_away();
    }
}

// ---- fork: the batch being sent is finished first; the child is inert until its own first vendor call -------------

void before_fork() {
    session.batch_lock.acquire();
    session.releases.lock().acquire();
    session.vendors.lock_for_fork();
    coupled::lock().acquire();
    session.channel.write_lock().acquire();
}

void after_fork_in_parent() {
    session.channel.write_lock().release();
    coupled::lock().release();
    session.vendors.unlock_after_fork();
    session.releases.lock().release();
    session.batch_lock.release();
}

void after_fork_in_child() {
    session.channel.close_in_child();
    session.staged.drop();
    session.occupied.reset_after_fork();
    session.questions.reset_after_fork();
    session.releases.reset_after_fork();
    session.synchronizer.reset_after_fork();
    session.observer.reset_after_fork();
    session.phase.store(wire::kRunning, std::memory_order_relaxed);
    session.transaction.store(0);
    session.generation = 0;
    session.frozen = session.has_parked = session.leaving = session.returned = false;
    session.begun.store(false);
    reset_gate_after_fork();
    reset_coverage();
    coupled::reset_after_fork();
    reset_ending_after_fork();
    reset_lending_after_fork();
    reset_identity_after_fork();
    give_tickets(false);
    session.vendors.reset_after_fork();
    session.batch_lock.reset_after_fork();
    life.store(kUnborn, std::memory_order_release);
}

bool allocate_frames() {
    if (session.frame == nullptr) session.frame = static_cast<Frame*>(calloc(1, sizeof(Frame)));
    if (session.parked == nullptr) session.parked = static_cast<Frame*>(calloc(1, sizeof(Frame)));
    return session.frame != nullptr && session.parked != nullptr;
}

void handle_forks() {
    if (fork_handled.exchange(1) == 0) at_fork(before_fork, after_fork_in_parent, after_fork_in_child);
}

// False: it was not sent; the question is open nevertheless.
bool ask_about(wire::FrameType type, uint64_t id, Question* question) {
    struct {
        wire::IdList list;
        uint64_t id;
    } payload{{session.transaction.load(), 1, 0}, id};
    iovec part{&payload, sizeof payload};
    session.questions.open(question);
    return session.channel.send(type, question->request, &part, 1);
}

// A daemon that hangs costs the program one such wait, not one an allocation.
void ask_for_room(const wire::OccupiedRecord& full) {
    iovec part{const_cast<wire::OccupiedRecord*>(&full), sizeof full};
    Question question;
    session.questions.open(&question);
    bool sent = session.channel.send(wire::kLetGo, question.request, &part, 1);
    bool answered = session.questions.wait(&question, sent ? kAnswerMs : kNoticeMs);
    if (!answered) session.silent.store(true, std::memory_order_relaxed);
}

// By the thread whose call it is, so that nothing of a device is used before the daemon has said whether it may be. A
// daemon that is not there, or does not answer, is waited for no longer: the agent goes on trying.
void meet_daemon() {
    bool met = session.channel.connect(socket_path, trusted_user) && greet(kHelloMs);
    if (met) return;
    session.channel.close();
    let_begin();
}

bool start_living() {
    handle_forks();
    if (!read_environment() || !allocate_frames()) {
        leave_gate_open();
        session.begun.store(true);
        return false;
    }
    prepare_gate();
    meet_daemon();
    if (start_thread(live, nullptr)) return true;
    session.channel.close();
    let_begin();
    return false;
}

void come_to_life() {
    life.store(start_living() ? kAlive : kInert, std::memory_order_release);  // inert: for ever, or until a fork
    futex_wake(&life, 0x7fffffff);
}

void await_life() {
    Deadline deadline(kHelloMs);
    while (life.load(std::memory_order_acquire) == kBeingBorn && !deadline.passed())
        futex_wait(&life, kBeingBorn, deadline.left_ms());
}

}  // namespace

void start_agent(const VendorOps* vendor) {
    KeepErrno keep;
    if (session.vendors.add(vendor)) foresee_ending();
    uint32_t expected = kUnborn;
    if (life.compare_exchange_strong(expected, kBeingBorn))
        come_to_life();
    else if (expected == kBeingBorn)
        await_life();
    if (!session.begun.load()) wait_as_if_new();
}

bool agent_is_alive() {
    return life.load(std::memory_order_acquire) == kAlive;
}

void tell_released(uint64_t id) {
    KeepErrno keep;
    session.releases.tell(id);
}

int ask_for_descriptor(uint64_t id) {
    KeepErrno keep;
    Question question;
    bool sent = ask_about(wire::kDescriptor, id, &question);
    session.questions.wait(&question, sent ? kAnswerMs : 0);
    return question.descriptor;
}

bool ask_to_let_go(const uint8_t uuid[16]) {
    KeepErrno keep;
    wire::OccupiedRecord full;
    bool occupied = session.occupied.find(uuid, &full);
    if (occupied && !session.silent.load(std::memory_order_relaxed)) ask_for_room(full);
    uint32_t orphaned_ms = session.occupied.orphaned_ms(uuid);  // by a daemon that is gone, by now or before
    sleep_us(orphaned_ms * 1000);
    return occupied || orphaned_ms > 0;
}

}  // namespace gcr
