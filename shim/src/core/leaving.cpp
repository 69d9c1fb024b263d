// SPDX-License-Identifier: Apache-2.0
#include "core/leaving.h"

#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/ending.h"
#include "core/session.h"
#include "device/release.h"

namespace gcr {
namespace {

constexpr uint32_t kLookUs = 10000;  // between two looks at the mark
constexpr unsigned kCloseOnExec = 1;  // MFD_CLOEXEC; memfd_create() itself is GLIBC_2.27

char mark[PATH_MAX + sizeof(wire::HelloRecord::token) + 32];

// A mark that cannot be seen, for whatever reason, is gone: the agent rather comes back too early.
bool is_marked() {
    KeepErrno keep;
    struct stat about;
    return syscall(SYS_lstat, mark, &about) == 0;  // lstat() itself is GLIBC_2.33
}

bool is_plain(char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

void cover_addresses() {
    Guard guard(session.batch_lock);  // no fork in between: the child would keep the file
    OwnedFd file;
    file.adopt(static_cast<int>(syscall(SYS_memfd_create, "gcr-addresses", kCloseOnExec)));
    if (!file.open()) return;
    session.vendors.cover_addresses(file.get());
    file.close();
}

}  // namespace

// As gcr/rendezvous/away.py does. A token may be any text: what is no letter and no digit becomes a dash.
void name_mark(const char* socket_path, const char* token) {
    char job[sizeof(wire::HelloRecord::token) + 1] = {};
    for (size_t i = 0; i + 1 < sizeof job && token[i] != '\0'; i++) job[i] = is_plain(token[i]) ? token[i] : '-';
    snprintf(mark, sizeof mark, "%s.away.%s.%d", socket_path, job, current_pid());
}

Failure begin_to_leave() {
    if (program_is_ending()) return kProgramEnds;
    if (!session.vendors.all_away()) return {wire::kWrongPhase, 0, "some of its memory has come back"};
    if (!is_marked()) return {wire::kWrongPhase, 0, "no mark keeps the agent away"};
    session.leaving = true;
    return {};
}

void close_own() {
    session.staged.drop();
    session.occupied.forget();
    cover_addresses();
}

void stay_away() {
    if (!session.leaving) return;
    session.returned = true;
    while (is_marked()) sleep_us(kLookUs);
    session.vendors.cover_addresses(device::kNoFile);
    session.leaving = false;
}

}  // namespace gcr
