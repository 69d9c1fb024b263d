// SPDX-License-Identifier: Apache-2.0
#include "core/identity.h"

#include <sys/syscall.h>
#include <unistd.h>

#include "core/lock.h"
#include "core/sys.h"

namespace gcr {
namespace {

constexpr long kGetRandomCall = 318;  // x86-64; glibc 2.25 has the function

Lock drawing;
std::atomic<uint32_t> drawn{0};  // release: `own` is set
Identity own{};

bool draw() {
    Guard guard(drawing);
    if (drawn.load(std::memory_order_relaxed) != 0) return true;
    if (syscall(kGetRandomCall, &own, sizeof own, 0) != static_cast<long>(sizeof own)) return false;
    own.process |= own.process == 0 ? 1 : 0;
    drawn.store(1, std::memory_order_release);
    return true;
}

}  // namespace

const Identity* identity() {
    KeepErrno keep;
    return drawn.load(std::memory_order_acquire) != 0 || draw() ? &own : nullptr;
}

void reset_identity_after_fork() {
    drawing.reset_after_fork();
    drawn.store(0, std::memory_order_relaxed);
}

}  // namespace gcr
