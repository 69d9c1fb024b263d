// SPDX-License-Identifier: Apache-2.0
//
// The gate and signal handlers on a thread that waits: they wait too, jump out of the wait, or fork.
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "gate_calls.h"

namespace {

using namespace gate_calls;

// ThreadSanitizer runs a handler once its thread calls a function it knows: who waits in a system call runs none.
#ifdef __SANITIZE_THREAD__
constexpr bool kHandlersAreHeldBack = true;
#else
constexpr bool kHandlersAreHeldBack = false;
#endif

std::atomic<int> began{0}, handled{0};
thread_local sigjmp_buf way_out;

void call_from_handler(int) {
    began++;
    one_call();
    gcr::PassiveEntry inside_too;
    handled++;
}

void jump_out(int) {
    siglongjmp(way_out, 1);
}

void handle_with(void (*handler)(int)) {
    struct sigaction action{};
    action.sa_handler = handler;
    action.sa_flags = SA_RESTART;
    CHECK(sigaction(SIGUSR1, &action, nullptr) == 0);
}

void one_passive_call() {
    gcr::PassiveEntry waiting;
    inside++;
    calls++;
    inside--;
}

template <typename Condition>
void wait_until(Condition holds) {
    gcr::Deadline deadline(20000);
    while (!holds()) CHECK(!deadline.passed());
    gcr::sleep_us(5000);  // who waits sleeps by now
}

void wait_for_park() {
    wait_until([] { return gcr::threads_parked() >= 1; });
}

void wait_for_freeze_wait() {
    gcr::sleep_us(200000);  // a thread that waits for the thaw can be told from none
}

void interrupt(std::thread& thread) {
    int before = began;
    pthread_kill(thread.native_handle(), SIGUSR1);
    wait_until([&] { return began > before; });
}

// The handler waits as its thread does, and both go on when the gate opens.
void a_handler_on_a_parked_thread_waits_too() {
    handle_with(call_from_handler);
    handled = 0;
    uint64_t before = calls;
    gcr::close_gate();
    CHECK(gcr::shut_for_freeze(1000));
    std::thread parked(one_call);
    wait_for_park();
    for (int i = 0; i < 3; i++) {
        pthread_kill(parked.native_handle(), SIGUSR1);
        gcr::sleep_us(20000);
        CHECK(handled == 0 && calls == before && gcr::calls_in_flight() == 0);
    }
    gcr::open_after_thaw();
    gcr::open_gate();
    parked.join();
    CHECK(handled >= 1 && calls == before + 1 + static_cast<uint64_t>(handled.load()));
    CHECK(gcr::calls_in_flight() == 0 && gcr::threads_parked() == 0);
}

// A pulse lets the handler's call through, and another one its thread's.
void a_handlers_call_takes_a_pulse_of_its_own() {
    handled = 0;
    uint64_t before = calls;
    gcr::close_gate();
    std::thread parked(one_call);
    wait_for_park();
    interrupt(parked);
    gcr::pulse_gate();
    wait_until([] { return handled == 1; });
    wait_for_park();
    CHECK(handled == 1 && calls == before + 1 && gcr::calls_in_flight() == 0);
    gcr::pulse_gate();
    parked.join();
    CHECK(calls == before + 2);
    gcr::open_gate();
}

// What a handler asks of the driver while its thread waits for the thaw must wait, too.
void a_handler_on_a_frozen_thread_waits_too() {
    handled = 0;
    uint64_t before = calls;
    CHECK(gcr::shut_for_freeze(1000));
    std::thread waiting(one_passive_call);
    wait_for_freeze_wait();
    gcr::close_gate();
    interrupt(waiting);
    CHECK(handled == 0 && calls == before);
    gcr::open_gate();  // its gated call goes, its passive one does not
    wait_until([&] { return calls > before; });
    CHECK(handled == 0 && calls == before + 1);
    gcr::open_after_thaw();
    waiting.join();
    CHECK(handled == 1 && calls == before + 2);
    CHECK(gcr::shut_for_freeze(1000));  // no mark was left behind
    gcr::open_after_thaw();
}

template <typename Call, typename Wait>
void jump_from(Call call, Wait wait_for_wait) {
    std::atomic<bool> set{false}, jumped{false}, again{false};
    std::thread thread([&] {
        if (sigsetjmp(way_out, 1) == 0) {
            set = true;
            call();
        }
        jumped = true;
        while (!again) gcr::sleep_us(1000);
        CHECK(!gcr::reentered());
        call();
    });
    wait_until([&] { return set.load(); });
    wait_for_wait();
    pthread_kill(thread.native_handle(), SIGUSR1);
    wait_until([&] { return jumped.load(); });
    again = true;
    gcr::sleep_us(20000);
    CHECK(inside == 0);  // its next call waits like any other
    gcr::open_after_thaw();
    gcr::open_gate();
    thread.join();
    CHECK(gcr::calls_in_flight() == 0);
    CHECK(gcr::shut_for_freeze(1000));
    gcr::open_after_thaw();
}

void a_jump_out_of_a_wait_leaves_no_call_behind() {
    handle_with(jump_out);
    gcr::close_gate();
    uint64_t before = calls;
    jump_from(one_call, wait_for_park);
    CHECK(calls == before + 1);
    CHECK(gcr::shut_for_freeze(1000));
    jump_from(one_passive_call, wait_for_freeze_wait);
    CHECK(calls == before + 2);
}

// The mark of a wait without a waiting thread goes when the gate opens, without a further call of its thread.
void a_jump_out_of_a_wait_is_over_once_the_gate_is_open() {
    handle_with(jump_out);
    std::atomic<bool> jumped{false}, over{false};
    gcr::close_gate();
    std::thread thread([&] {
        if (sigsetjmp(way_out, 1) == 0) one_call();
        jumped = true;
        while (!over) gcr::sleep_us(1000);
    });
    wait_for_park();
    pthread_kill(thread.native_handle(), SIGUSR1);
    wait_until([&] { return jumped.load(); });
    gcr::open_gate();
    CHECK(gcr::calls_in_flight() == 0 && gcr::threads_parked() == 0);
    gcr::close_gate();
    drain();
    gcr::open_gate();
    over = true;
    thread.join();
}

std::atomic<int> child_said{-1};

void fork_from_handler(int) {
    pid_t child = fork();
    if (child == 0) gcr::reset_gate_after_fork();
    if (child > 0) {
        int status = -1;
        waitpid(child, &status, 0);
        child_said = status;
    }
}

// The child has the waiting thread alone, and no thread that would wake it.
void a_fork_in_a_handler_on_a_parked_thread_goes_on() {
    handle_with(fork_from_handler);
    pid_t parent = getpid();
    gcr::close_gate();
    std::thread parked([parent] {
        one_call();
        if (getpid() != parent) _exit(0);
    });
    wait_for_park();
    pthread_kill(parked.native_handle(), SIGUSR1);
    wait_until([] { return child_said >= 0; });
    CHECK(child_said == 0);
    gcr::open_gate();
    parked.join();
}

}  // namespace

int main() {
    gcr::prepare_gate();
    if (!kHandlersAreHeldBack) {
        a_handler_on_a_parked_thread_waits_too();
        a_handlers_call_takes_a_pulse_of_its_own();
        a_handler_on_a_frozen_thread_waits_too();
        a_jump_out_of_a_wait_leaves_no_call_behind();
        a_jump_out_of_a_wait_is_over_once_the_gate_is_open();
        a_fork_in_a_handler_on_a_parked_thread_goes_on();
    }
}
