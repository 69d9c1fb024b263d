// SPDX-License-Identifier: Apache-2.0
//
// The gate with many threads: while it is closed and drained no thread is inside; none waits for ever; slots come back.
#include <pthread.h>
#include <stdio.h>
#include <time.h>

#include <thread>
#include <vector>

#include "gate_calls.h"

namespace {

using namespace gate_calls;

std::atomic<bool> stop{false};
uint64_t guarded = 0;  // plain: the sanitizer proves that the agent's look at it is ordered by the gate

void keep_calling() {
    while (!stop) one_call();
}

std::vector<std::thread> start(int count, void (*body)()) {
    stop = false;
    std::vector<std::thread> threads;
    for (int i = 0; i < count; i++) threads.emplace_back(body);
    return threads;
}

void finish(std::vector<std::thread>& threads) {
    stop = true;
    for (std::thread& thread : threads) thread.join();
}

void closed_means_nobody_inside() {
    auto threads = start(4, keep_calling);
    for (int round = 0; round < 300; round++) {
        gcr::close_gate();
        drain();
        CHECK(inside == 0);
        uint64_t before = calls;
        if (round % 30 == 0) gcr::sleep_us(2000);
        CHECK(calls == before && inside == 0);
        gcr::open_gate();
        gcr::Deadline deadline(20000);
        while (calls == before) CHECK(!deadline.passed());
    }
    finish(threads);
}

void write_guarded() {
    while (!stop) {
        gcr::GateEntry in_flight;
        static std::atomic_flag one = ATOMIC_FLAG_INIT;
        if (one.test_and_set(std::memory_order_acquire)) continue;
        guarded++;
        one.clear(std::memory_order_release);
    }
}

void what_calls_did_is_seen_once_drained() {
    auto threads = start(3, write_guarded);
    for (int round = 0; round < 200; round++) {
        gcr::close_gate();
        drain();
        guarded++;
        gcr::open_gate();
        gcr::sleep_us(100);
    }
    finish(threads);
}

void a_pulse_is_one_call_a_thread() {
    auto threads = start(4, keep_calling);
    gcr::close_gate();
    gcr::Deadline deadline(20000);
    while (gcr::threads_parked() < 4) CHECK(!deadline.passed());
    for (int pulse = 0; pulse < 50; pulse++) {
        uint64_t before = calls;
        gcr::pulse_gate();
        while (gcr::threads_parked() < 4) CHECK(!deadline.passed());
        CHECK(calls == before + 4);
    }
    stop = true;
    gcr::open_gate();
    finish(threads);
}

void nested_calls_do_not_park() {
    gcr::GateEntry outer;
    CHECK(gcr::reentered());
    gcr::close_gate();
    {
        gcr::GateEntry inner;
        CHECK(gcr::calls_in_flight() == 1);
    }
    CHECK(gcr::calls_in_flight() == 1);
    gcr::open_gate();
}

void threads_give_their_slots_back() {
    for (int i = 0; i < 300; i++) std::thread(one_call).join();
    CHECK(gcr::calls_in_flight() == 0);
    CHECK(!gcr::reentered());
}

// Ends inside a call, its mark still set: cancelled, so no destructor of ours runs.
void* end_in_flight(void*) {
    gcr::Slot* slot = gcr::enter_gate_slowly();
    slot->depth.store(1);
    pthread_exit(nullptr);
}

void a_thread_that_ends_in_flight_is_not_waited_for() {
    pthread_t thread;
    CHECK(pthread_create(&thread, nullptr, end_in_flight, nullptr) == 0);
    CHECK(pthread_join(thread, nullptr) == 0);
    CHECK(gcr::calls_in_flight() == 0);
    std::thread([] {
        gcr::close_gate();
        CHECK(!gcr::reentered());
        gcr::open_gate();
        one_call();
    }).join();
}

void captures_wait_while_they_are_held() {
    gcr::hold_captures(true);
    std::atomic<bool> begun{false};
    std::thread capturing([&] {
        gcr::GateEntry in_flight;
        gcr::wait_to_capture();
        begun = true;
    });
    gcr::sleep_us(50000);
    CHECK(!begun && gcr::calls_in_flight() == 0);  // it waits outside: the gate can be drained
    gcr::hold_captures(false);
    capturing.join();
    CHECK(begun);
}

// Seconds from the begin of a capture until it may go on; the examination that was under way ends after `ends_ms`.
double seconds_beside_an_examination(uint32_t ends_ms) {
    gcr::begin_examination();
    uint64_t began = gcr::now_ms();
    std::atomic<uint64_t> passed{0};
    std::thread capturing([&] {
        gcr::GateEntry in_flight;
        gcr::wait_to_capture();
        passed = gcr::now_ms();
    });
    gcr::sleep_us(ends_ms * 1000);
    CHECK(gcr::calls_in_flight() == 0);
    gcr::end_examination();
    capturing.join();
    return static_cast<double>(passed - began) / 1000;
}

void captures_wait_for_examinations_but_not_for_ever() {
    CHECK(seconds_beside_an_examination(200) >= 0.2);
    double seconds = seconds_beside_an_examination(2500);
    CHECK(seconds >= 1 && seconds < 2.5);
}

double nanoseconds_a_call() {
    constexpr int kCalls = 5000000;
    timespec begin{}, end{};
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (int i = 0; i < kCalls; i++) gcr::GateEntry in_flight;
    clock_gettime(CLOCK_MONOTONIC, &end);
    double seconds =
        static_cast<double>(end.tv_sec - begin.tv_sec) + static_cast<double>(end.tv_nsec - begin.tv_nsec) * 1e-9;
    return seconds / kCalls * 1e9;
}

}  // namespace

int main() {
    gcr::prepare_gate();
    closed_means_nobody_inside();
    what_calls_did_is_seen_once_drained();
    a_pulse_is_one_call_a_thread();
    nested_calls_do_not_park();
    threads_give_their_slots_back();
    a_thread_that_ends_in_flight_is_not_waited_for();
    captures_wait_while_they_are_held();
    captures_wait_for_examinations_but_not_for_ever();
    gcr::use_process_fences(false);  // without the kernel's fence
    closed_means_nobody_inside();
    printf("%.1f ns a gated call, %.1f with fences of its own\n", (gcr::use_process_fences(true), nanoseconds_a_call()),
           (gcr::use_process_fences(false), nanoseconds_a_call()));
}
