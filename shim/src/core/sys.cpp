// SPDX-License-Identifier: Apache-2.0
#include "core/sys.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

namespace gcr {
namespace {

// linux/futex.h and linux/membarrier.h, spelled out: older build hosts lack the second.
constexpr int kFutexWaitPrivate = 0 | 128;
constexpr int kFutexWakePrivate = 1 | 128;
constexpr int kMembarrierPrivateExpedited = 1 << 3;
constexpr int kMembarrierRegisterPrivateExpedited = 1 << 4;
constexpr long kMembarrierCall = 324;  // x86-64

#ifndef F_GET_SEALS
constexpr int F_GET_SEALS = 1034;  // headers older than Linux 3.17
#endif
#ifndef F_SEAL_SHRINK
constexpr int F_SEAL_SHRINK = 2;
#endif

uint64_t clock_ns() {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<uint64_t>(now.tv_sec) * 1000000000ull + static_cast<uint64_t>(now.tv_nsec);
}

}  // namespace

uint64_t now_ms() {
    return clock_ns() / 1000000;
}
uint64_t now_us() {
    return clock_ns() / 1000;
}

void sleep_us(uint32_t microseconds) {
    timespec pause{microseconds / 1000000, static_cast<long>(microseconds % 1000000) * 1000};
    syscall(SYS_nanosleep, &pause, nullptr);  // not the libc one: that is a cancellation point
}

void futex_wait(std::atomic<uint32_t>* word, uint32_t expected, uint32_t timeout_ms) {
    KeepErrno keep;
    timespec limit{timeout_ms / 1000, static_cast<long>(timeout_ms % 1000) * 1000000};
    timespec* within = timeout_ms == kForever ? nullptr : &limit;
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), kFutexWaitPrivate, expected, within, nullptr, 0);
}

void futex_wake(std::atomic<uint32_t>* word, int count) {
    KeepErrno keep;
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), kFutexWakePrivate, count, nullptr, nullptr, 0);
}

bool register_process_fence() {
    KeepErrno keep;
    return syscall(kMembarrierCall, kMembarrierRegisterPrivateExpedited, 0, 0) == 0;
}

void process_fence() {
    KeepErrno keep;
    if (syscall(kMembarrierCall, kMembarrierPrivateExpedited, 0, 0) == 0) return;
    if (register_process_fence()) syscall(kMembarrierCall, kMembarrierPrivateExpedited, 0, 0);  // it may get lost
}

bool identify(int fd, FileIdentity* out) {
    KeepErrno keep;
    struct stat status{};
    if (syscall(SYS_fstat, fd, &status) != 0) return false;  // fstat() itself is GLIBC_2.33
    out->device = status.st_dev;
    out->inode = status.st_ino;
    return true;
}

void OwnedFd::adopt(int fd) {
    close();
    if (fd >= 0 && identify(fd, &identity_)) fd_ = fd;
}

bool OwnedFd::still_ours() const {
    FileIdentity now;
    return fd_ >= 0 && identify(fd_, &now) && now == identity_;
}

void OwnedFd::close() {
    KeepErrno keep;
    if (still_ours()) close_descriptor(fd_);
    fd_ = -1;
}

bool holds_for_good(int file, uint64_t offset, uint64_t size) {
    KeepErrno keep;
    struct stat about;
    int seals = fcntl(file, F_GET_SEALS);
    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) return false;
    if (syscall(SYS_fstat, file, &about) != 0) return false;
    uint64_t length = static_cast<uint64_t>(about.st_size);
    return offset <= length && size <= length - offset;
}

void close_descriptor(int fd) {
    syscall(SYS_close, fd);
}

int current_pid() {
    return static_cast<int>(syscall(SYS_getpid));
}

}  // namespace gcr
