// SPDX-License-Identifier: Apache-2.0
//
// Admission by number: the agent sees which thread waits with which call, and lets that one alone through.
#include <sys/prctl.h>

#include <thread>

#include "core/coupled.h"
#include "gate_calls.h"

namespace {

using gcr::Call;
using gcr::Waiting;

constexpr uint64_t kReduce = 0x1000;
std::atomic<bool> stop{false};
std::atomic<int> made[3];

// Thread `index` makes calls on stream 0x10 + index, of the coupled kernel if it is the last.
void keep_calling(int index) {
    if (index == 1) prctl(PR_SET_NAME, "NCCL Progress 0");
    while (!stop) {
        gcr::GateEntry in_flight([&] { return Call{index == 2 ? kReduce : 0, 0x10u + static_cast<uint64_t>(index)}; },
                                 true);
        made[index]++;
    }
}

Waiting of_stream(uint64_t stream) {
    gcr::Deadline deadline(20000);
    while (true) {
        Waiting found[8];
        uint32_t count = gcr::list_parked(found, 8);
        for (uint32_t i = 0; i < count; i++)
            if (found[i].stream == stream) return found[i];
        CHECK(!deadline.passed());
    }
}

void each_says_what_it_waits_with(const Waiting (&all)[3]) {
    CHECK(all[0].signature == 0 && all[1].signature == 0);
    CHECK(all[2].signature != 0 && all[2].signature == gcr::coupled::signature_of({kReduce, 0x12}));
    CHECK(!all[0].helper && all[1].helper && !all[2].helper);
    CHECK(all[0].number != all[1].number && all[1].number != all[2].number);
}

void one_alone_is_let_through(const Waiting& chosen) {
    for (int times = 1; times <= 50; times++) {
        Waiting before = of_stream(chosen.stream);
        int counts[] = {made[0], made[1], made[2]};
        CHECK(gcr::admit_one(chosen.number));
        Waiting now = before;
        gcr::Deadline deadline(20000);
        while (!gcr::find_parked(chosen.number, &now) || now.calls == before.calls) CHECK(!deadline.passed());
        CHECK(now.calls == before.calls + 1);
        for (int i = 0; i < 3; i++) CHECK(made[i] == counts[i] + (chosen.stream == 0x10u + i ? 1 : 0));
    }
}

void a_limit_is_kept_and_strangers_are_not_admitted() {
    Waiting found[8];
    CHECK(gcr::list_parked(found, 2) == 2);
    CHECK(!gcr::admit_one(9999) && !gcr::find_parked(9999, found));
}

void a_begin_of_a_capture_is_seen_waiting() {
    gcr::hold_captures(true);
    std::thread capturing([] {
        gcr::GateEntry in_flight;
        gcr::wait_to_capture();
    });
    gcr::Deadline deadline(20000);
    while (gcr::captures_waiting() != 1) CHECK(!deadline.passed());
    CHECK(gcr::calls_in_flight() == 0);
    gcr::hold_captures(false);
    capturing.join();
    CHECK(gcr::captures_waiting() == 0);
}

}  // namespace

int main() {
    gcr::prepare_gate();
    gcr::coupled::learn(kReduce, "ncclDevKernel_AllReduce");
    gcr::close_gate();
    std::thread threads[] = {std::thread(keep_calling, 0), std::thread(keep_calling, 1), std::thread(keep_calling, 2)};
    Waiting all[] = {of_stream(0x10), of_stream(0x11), of_stream(0x12)};
    each_says_what_it_waits_with(all);
    for (const Waiting& one : all) one_alone_is_let_through(one);
    a_limit_is_kept_and_strangers_are_not_admitted();
    stop = true;
    gcr::open_gate();
    for (std::thread& thread : threads) thread.join();
    CHECK(gcr::coupled::launched(all[2].signature) == static_cast<uint32_t>(made[2]));
    Waiting none[1];
    CHECK(gcr::list_parked(none, 1) == 0);
    a_begin_of_a_capture_is_seen_waiting();
    puts("admissions: all good");
    return 0;
}
