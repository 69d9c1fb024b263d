// SPDX-License-Identifier: Apache-2.0
//
// Quiesce: close the gate, let the calls in flight leave, make every device idle.
//
// A call in flight, or work on a device, may need a call that waits at the gate (a host callback, a spinning kernel, a
// stream that waits for a value). So without progress for pulse_ms the parked threads may make one call each; what they
// enqueued must then be waited for as well: a synchronisation counts only if nothing was admitted since it began.
// Pulses come slower each time, so that threads which always have one more kernel cannot keep a device busy for ever.
// Captures in progress cannot be interrupted: none begins while a close is wanted, and those begun may end first.
#include "core/ending.h"
#include "core/gate.h"
#include "core/observing.h"
#include "core/session.h"

namespace gcr {
namespace {

constexpr uint32_t kTickUs = 200;
constexpr uint32_t kObserveMs = 500;

class Pulses {
  public:
    explicit Pulses(uint32_t interval_ms) : interval_(interval_ms), since_(now_ms()) {}
    void progress() { since_ = now_ms(); }
    uint32_t count() const { return count_; }

    void beat() {
        if (interval_ == 0 || threads_parked() == 0) return;
        if (now_ms() - since_ < interval_ + static_cast<uint64_t>(interval_) * count_ / 8) return;
        count_++;
        pulse_gate();
        progress();
    }

  private:
    uint32_t interval_;
    uint64_t since_;
    uint32_t count_ = 0;
};

// One attempt with the gate closed. kWaitForCaptures: one began just before the close, the gate must open again.
enum class Attempt { kIdle, kWaitForCaptures, kLate, kFailed };

struct Closing {
    Deadline deadline;
    Pulses pulses;
    Failure failure;
    uint32_t begun_at = 0;  // pulses before the synchronisation that runs began
    bool synchronizing = false;

    Closing(uint32_t deadline_ms, uint32_t pulse_ms) : deadline(deadline_ms), pulses(pulse_ms) {}

    bool tick() { return listen_for_replies(kTickUs) && !deadline.passed() && !program_is_ending(); }

    bool wait_for_captures() {
        while (session.vendors.captures() > 0)
            if (!tick()) return false;
        return true;
    }

    // True when the devices are idle and nothing was admitted since the synchronisation began.
    bool synchronized() {
        if (session.synchronizer.busy()) return false;
        if (synchronizing) {
            synchronizing = false;
            failure = synchronization_result();
            if (failure || begun_at == pulses.count()) return true;
            pulses.progress();
        }
        begun_at = pulses.count();
        synchronizing = begin_to_synchronize();
        if (!synchronizing && !session.synchronizer.available())
            failure = {wire::kNoMemory, 0, "no thread could be started"};
        return static_cast<bool>(failure);
    }

    Attempt attempt() {
        uint32_t last = ~0u;
        while (true) {
            uint32_t in_flight = calls_in_flight();
            if (in_flight < last) pulses.progress();
            last = in_flight;
            if (in_flight == 0 && session.vendors.captures() > 0) return Attempt::kWaitForCaptures;
            if (in_flight == 0 && synchronized()) return failure ? Attempt::kFailed : Attempt::kIdle;
            pulses.beat();
            if (synchronizing && session.synchronizer.busy()) session.synchronizer.wait(1);
            if (!tick()) return Attempt::kLate;
        }
    }

    Attempt run() {
        while (wait_for_captures()) {
            close_gate();
            Attempt result = attempt();
            if (result != Attempt::kWaitForCaptures) return result;
            open_gate();
        }
        return Attempt::kLate;
    }
};

void name_stuck(Stuck* stuck) {
    uint32_t in_flight = calls_in_flight();
    observe(stuck, kObserveMs);
    if (stuck->count == 0) stuck->records[stuck->count++] = {};
    for (uint32_t i = 0; i < stuck->count; i++) stuck->records[i].in_flight = in_flight;
}

}  // namespace

Failure quiesce(uint32_t deadline_ms, uint32_t pulse_ms, Stuck* stuck) {
    hold_captures(true);
    Closing closing(deadline_ms, pulse_ms);
    Attempt result = closing.run();
    bool ending = program_is_ending();  // the gate is closed, or will be open: exit() has passed it, or waits there
    if (result == Attempt::kLate && !session.lost && !ending) name_stuck(stuck);
    if (result != Attempt::kIdle || ending) open_gate();
    hold_captures(false);  // a closed gate holds them from here on
    if (ending) return kProgramEnds;
    if (result == Attempt::kIdle) return {};
    if (result == Attempt::kFailed) return closing.failure;
    return {wire::kStuck, 0, session.lost ? "the connection ended" : "the devices were not idle before the deadline"};
}

}  // namespace gcr
