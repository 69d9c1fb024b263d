// SPDX-License-Identifier: Apache-2.0
//
// What the guest asks of the kernel, without symbols newer than GLIBC_2.17: futexes, identities of descriptors, clocks.
// Nothing here prints, exits, or changes errno where KeepErrno stands.
#ifndef GCR_CORE_SYS_H
#define GCR_CORE_SYS_H

#include <errno.h>
#include <stdint.h>

#include <atomic>

namespace gcr {

// A program under gcr sees the errno it would have seen bare.
class KeepErrno {
  public:
    KeepErrno() : saved_(errno) {}
    ~KeepErrno() { errno = saved_; }
    KeepErrno(const KeepErrno&) = delete;
    KeepErrno& operator=(const KeepErrno&) = delete;

  private:
    int saved_;
};

uint64_t now_ms();
uint64_t now_us();
void sleep_us(uint32_t microseconds);

// A point in time, in now_ms() milliseconds.
class Deadline {
  public:
    explicit Deadline(uint64_t milliseconds) : end_(now_ms() + milliseconds) {}
    bool passed() const { return now_ms() >= end_; }
    uint32_t left_ms() const {
        uint64_t now = now_ms();
        return now >= end_ ? 0 : static_cast<uint32_t>(end_ - now);
    }

  private:
    uint64_t end_;
};

// Sleeps while *word == expected, at most timeout_ms (0xffffffff: for ever). Returns for any reason; look again.
void futex_wait(std::atomic<uint32_t>* word, uint32_t expected, uint32_t timeout_ms);
void futex_wake(std::atomic<uint32_t>* word, int count);
constexpr uint32_t kForever = 0xffffffffu;

// Makes every running thread of this process pass a full fence. False where the kernel will not.
bool register_process_fence();
void process_fence();

// Which open file a descriptor is: tells ours from a stranger that was given the same number.
struct FileIdentity {
    uint64_t device = 0;
    uint64_t inode = 0;
    bool operator==(const FileIdentity& other) const { return device == other.device && inode == other.inode; }
};
bool identify(int fd, FileIdentity* out);  // false: not an open descriptor

// A descriptor together with what it was when we opened it. Closes only itself, never a stranger.
class OwnedFd {
  public:
    OwnedFd() = default;
    void adopt(int fd);
    int get() const { return fd_; }
    bool open() const { return fd_ >= 0; }
    bool still_ours() const;
    void close();  // a stranger under our number is left alone
    void forget() { fd_ = -1; }

  private:
    int fd_ = -1;
    FileIdentity identity_;
};

// A file in memory that has these bytes and cannot be cut short: a process that maps them is never ended by SIGBUS.
bool holds_for_good(int file, uint64_t offset, uint64_t size);

// As close(), without being a point where the program may cancel its thread: no lock of ours would be released then.
void close_descriptor(int fd);

int current_pid();

}  // namespace gcr

#endif  // GCR_CORE_SYS_H
