// SPDX-License-Identifier: Apache-2.0
#include "device/captures.h"

#include <sys/syscall.h>
#include <unistd.h>

namespace gcr {
namespace device {
namespace {

long this_thread() {
    return syscall(SYS_gettid);
}

}  // namespace

template <typename Matches>
void Captures::remove_if(Matches matches) {
    Guard guard(lock_);
    for (size_t i = all_.size(); i-- > 0;)
        if (matches(all_[i])) all_.swap_out(i);
    count_.store(static_cast<uint32_t>(all_.size()), std::memory_order_seq_cst);
}

void Captures::add(const CapturedStream& stream, uint32_t mode, uint64_t owner) {
    Guard guard(lock_);
    all_.push({stream, this_thread(), mode, owner});
    count_.store(static_cast<uint32_t>(all_.size()), std::memory_order_seq_cst);
}

void Captures::remove(const CapturedStream& stream) {
    remove_if([&](const Capture& capture) {
        if (capture.stream.handle != stream.handle || capture.stream.per_thread != stream.per_thread) return false;
        return !stream.own || capture.thread == this_thread();
    });
}

bool Captures::forbid(uint32_t mode) {
    if (mode == kCaptureRelaxed) return false;
    Guard guard(lock_);
    for (const Capture& capture : all_) {
        if (capture.mode == kCaptureRelaxed) continue;
        if (capture.thread == this_thread()) return true;
        if (mode == kCaptureGlobal && capture.mode == kCaptureGlobal) return true;
    }
    return false;
}

void Captures::forget_of(uint64_t owner) {
    if (count() > 0) remove_if([&](const Capture& capture) { return capture.owner == owner; });
}

void Captures::forget_on(uint64_t stream) {
    if (count() > 0) remove_if([&](const Capture& capture) { return capture.stream.handle == stream; });
}

void Captures::forget_all_after_fork() {
    lock_.reset_after_fork();
    all_.clear();
    count_.store(0, std::memory_order_seq_cst);
}

}  // namespace device
}  // namespace gcr
