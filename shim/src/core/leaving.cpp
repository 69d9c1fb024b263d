// SPDX-License-Identifier: Apache-2.0
#include "core/leaving.h"

#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/ending.h"
#include "core/session.h"

namespace gcr {
namespace {

constexpr uint32_t kLookUs = 10000;  // between two looks at the mark

char mark[PATH_MAX + 32];

// A mark that cannot be seen, for whatever reason, is gone: the agent rather comes back too early.
bool is_marked() {
    KeepErrno keep;
    struct stat about;
    return syscall(SYS_lstat, mark, &about) == 0;  // lstat() itself is GLIBC_2.33
}

}  // namespace

// As gcr/rendezvous/away.py does.
void name_mark(const char* socket_path) {
    snprintf(mark, sizeof mark, "%s.away.%d", socket_path, current_pid());
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
}

void stay_away() {
    while (session.leaving && is_marked()) sleep_us(kLookUs);
    session.leaving = false;
}

}  // namespace gcr
