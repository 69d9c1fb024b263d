// SPDX-License-Identifier: Apache-2.0
#include "core/ticket.h"

#include <fcntl.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/sys.h"

namespace gcr {
namespace {

constexpr long kMemfdCreateCall = 319;  // x86-64; glibc 2.27 has the function
constexpr unsigned int kAllowSealing = 2;  // MFD_ALLOW_SEALING; what a driver gives is not closed by exec either
constexpr int kAddSeals = 1033;  // F_ADD_SEALS
constexpr int kGetSeals = 1034;
constexpr int kSeals = 1 | 2 | 4 | 8;  // F_SEAL_SEAL, SHRINK, GROW, WRITE

std::atomic<bool> wanted_here{false};

bool fill(int descriptor, const Blob& blob) {
    return syscall(SYS_pwrite64, descriptor, &blob, sizeof blob, 0) == static_cast<long>(sizeof blob) &&
           fcntl(descriptor, kAddSeals, kSeals) == 0;
}

}  // namespace

bool gives_tickets() {
    return wanted_here.load(std::memory_order_relaxed);
}

void give_tickets(bool wanted) {
    wanted_here.store(wanted, std::memory_order_relaxed);
}

int make_ticket(const Blob& blob) {
    KeepErrno keep;
    int descriptor = static_cast<int>(syscall(kMemfdCreateCall, "gcr-ticket", kAllowSealing));
    if (descriptor < 0 || fill(descriptor, blob)) return descriptor;
    syscall(SYS_close, descriptor);
    return -1;
}

bool read_ticket(int descriptor, Blob* blob) {
    KeepErrno keep;
    char read[sizeof *blob + 1];
    if (fcntl(descriptor, kGetSeals) != kSeals) return false;
    if (syscall(SYS_pread64, descriptor, read, sizeof read, 0) != static_cast<long>(sizeof *blob)) return false;
    memcpy(blob, read, sizeof *blob);
    return is_blob(*blob, blob->vendor) && blob->address == 0;
}

}  // namespace gcr
