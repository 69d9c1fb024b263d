// SPDX-License-Identifier: Apache-2.0
#include "core/threads.h"

#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>

#include "core/sys.h"

// glibc 2.34 gave these a second version; the first is in every glibc (x86-64). Weak: see threads.h.
#define GCR_OLD_WEAK(name)                                  \
    extern "C" __typeof__(name) name __attribute__((weak)); \
    __asm__(".symver " #name "," #name "@GLIBC_2.2.5")
GCR_OLD_WEAK(pthread_create);
GCR_OLD_WEAK(pthread_key_create);
GCR_OLD_WEAK(pthread_setspecific);
GCR_OLD_WEAK(pthread_attr_setstacksize);
#undef GCR_OLD_WEAK

namespace gcr {
namespace {

constexpr size_t kStackBytes = 256 * 1024;  // driver calls run on it

enum KeyState : uint32_t { kNoKey, kMaking, kReady, kUnavailable };
std::atomic<uint32_t> key_state{kNoKey};
pthread_key_t exit_key;

// One function for all values: the only user is the gate.
void (*leave_function)(void*) = nullptr;
void leave_thread(void* value) {
    leave_function(value);
}

void make_key(void (*leave)(void*)) {
    uint32_t expected = kNoKey;
    if (key_state.compare_exchange_strong(expected, kMaking)) {
        leave_function = leave;
        bool made = pthread_key_create != nullptr && pthread_key_create(&exit_key, leave_thread) == 0;
        key_state.store(made ? kReady : kUnavailable, std::memory_order_release);  // pairs with the loads below
    }
    while (key_state.load(std::memory_order_acquire) == kMaking) sleep_us(50);
}

// What setuid() and its kin send to every thread of the process, and wait for: a thread that never takes it would have
// the program wait for ever. Its handler is libc's own, and restarts what it interrupts.
constexpr int kSetIdSignal = 33;

// The kernel's signal set, not libc's, which leaves out the signals that libc keeps to itself.
struct SignalsBlocked {
    SignalsBlocked() {
        uint64_t blocked = ~(1ull << (kSetIdSignal - 1));
        syscall(SYS_rt_sigprocmask, SIG_SETMASK, &blocked, &before, sizeof blocked);
    }
    ~SignalsBlocked() { syscall(SYS_rt_sigprocmask, SIG_SETMASK, &before, nullptr, sizeof before); }
    uint64_t before = 0;
};

// stack_bytes: 0 for the default.
bool start_detached(void* (*body)(void*), void* argument, size_t stack_bytes) {
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    if (stack_bytes != 0) pthread_attr_setstacksize(&attributes, stack_bytes);
    pthread_t thread;
    bool started = pthread_create(&thread, &attributes, body, argument) == 0;
    pthread_attr_destroy(&attributes);
    return started;
}

}  // namespace

bool start_thread(void* (*body)(void*), void* argument) {
    KeepErrno keep;
    if (pthread_create == nullptr || pthread_attr_setstacksize == nullptr) return false;
    SignalsBlocked blocked;  // inherited by the new thread
    // The program's thread-local data lies on the stack, too: where it is large, only the default has room for it.
    return start_detached(body, argument, kStackBytes) || start_detached(body, argument, 0);
}

bool at_thread_exit(void (*leave)(void*), void* value) {
    if (key_state.load(std::memory_order_acquire) != kReady) make_key(leave);
    if (key_state.load(std::memory_order_acquire) != kReady) return false;
    return pthread_setspecific != nullptr && pthread_setspecific(exit_key, value) == 0;
}

bool at_fork(void (*prepare)(), void (*parent)(), void (*child)()) {
    return pthread_atfork(prepare, parent, child) == 0;
}

}  // namespace gcr
