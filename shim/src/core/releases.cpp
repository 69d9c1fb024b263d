// SPDX-License-Identifier: Apache-2.0
#include "core/releases.h"

#include <sys/uio.h>

#include "core/session.h"

namespace gcr {
namespace {

constexpr uint32_t kPromptMs = 2000;  // a free waits so long for others to let go, once
constexpr uint32_t kSendMs = 1000;
constexpr uint32_t kAtOnce = 0;
constexpr uint64_t kRefusedMs = 200;  // a daemon that has too much to do is let alone for so long
constexpr uint32_t kMost = 512;  // ids of one frame

bool send(const uint64_t* ids, uint32_t count, uint64_t request, uint32_t deadline_ms) {
    wire::IdList list{session.transaction.load(), count, 0};
    iovec parts[] = {{&list, sizeof list}, {const_cast<uint64_t*>(ids), count * sizeof *ids}};
    return session.channel.send_within(deadline_ms, wire::kReleased, request, parts, 2);
}

}  // namespace

void Releases::tell(uint64_t id) {
    if (slow_.load(std::memory_order_relaxed))
        tell_slowly(id);
    else
        tell_promptly(id);
}

void Releases::tell_promptly(uint64_t id) {
    Question question;
    bool sent;
    {
        Guard guard(session.batch_lock);  // the daemon hears of the export first
        session.questions.open(&question);
        await(question.request, id);
        sent = send(&id, 1, question.request, kSendMs);
    }
    bool answered = session.questions.wait(&question, sent ? kPromptMs : 0);
    if (!sent) unsay(question.request);
    if (answered || !sent) return;
    asked_.store(0);
    slow_.store(true, std::memory_order_relaxed);
}

// One of them at a time tells whether answers are prompt again.
void Releases::tell_slowly(uint64_t id) {
    uint64_t request = session.questions.number(), none = 0;
    bool sent;
    {
        Guard guard(session.batch_lock);
        asked_at_.store(now_ms());
        bool first = asked_.compare_exchange_strong(none, request);
        await(request, id);
        sent = send(&id, 1, request, kAtOnce);
        if (!sent && first) asked_.store(0);
    }
    if (!sent) unsay(request);
}

void Releases::await(uint64_t request, uint64_t id) {
    Guard guard(lock_);
    unanswered_.push({request, id});
}

void Releases::settle(uint64_t request, Then then) {
    Guard guard(lock_);
    for (size_t i = unanswered_.size(); i-- > 0;) {
        if (unanswered_[i].request != request) continue;
        // Without host memory the daemon never hears of it.
        if (then == Then::kSayAgain) unsaid_.push(unanswered_[i].id);
        unanswered_.swap_out(i);
    }
}

void Releases::unsay(uint64_t request) {
    settle(request, Then::kSayAgain);
}

void Releases::lose() {
    Guard guard(lock_);
    for (const Told& told : unanswered_) unsaid_.push(told.id);
    unanswered_.clear();
    say_from_ = 0;  // it was that daemon which had too much to do
}

void Releases::heard(uint64_t request) {
    uint64_t expected = request;
    settle(request, Then::kForget);
    if (request == 0 || !asked_.compare_exchange_strong(expected, 0)) return;
    if (now_ms() - asked_at_.load() < kPromptMs) slow_.store(false, std::memory_order_relaxed);
}

void Releases::refused(uint64_t request) {
    uint64_t expected = request;
    unsay(request);
    say_from_ = now_ms() + kRefusedMs;
    if (request != 0) asked_.compare_exchange_strong(expected, 0);
}

uint32_t Releases::take(uint64_t* ids, uint32_t limit) {
    Guard guard(lock_);
    uint32_t count = 0;
    while (count < limit && !unsaid_.empty()) ids[count++] = unsaid_.pop();
    return count;
}

void Releases::say_unsaid() {
    uint64_t ids[kMost];
    while (uint32_t count = now_ms() < say_from_ ? 0 : take(ids, kMost)) {
        uint64_t request = session.questions.number();
        for (uint32_t i = 0; i < count; i++) await(request, ids[i]);
        if (send(ids, count, request, kAtOnce)) continue;
        unsay(request);
        return;
    }
}

void Releases::reset_after_fork() {
    lock_.reset_after_fork();
    unsaid_.clear();
    unanswered_.clear();
    slow_.store(false, std::memory_order_relaxed);
    asked_.store(0);
    say_from_ = 0;
}

}  // namespace gcr
