// SPDX-License-Identifier: Apache-2.0
#include "core/life.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/sys.h"

namespace gcr {
namespace {

constexpr int kState = 3, kStack = 28;  // fields of /proc/PID/stat, from 1; proc(5)

// Bytes read, with a zero after them; negative: errno.
long read_stat(int32_t pid, char* text, size_t size) {
    char path[32];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    long file = syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return -errno;
    long length = syscall(SYS_read, file, text, size - 1);
    long result = length < 0 ? -errno : length;
    syscall(SYS_close, file);
    text[length < 0 ? 0 : length] = '\0';
    return result;
}

// The name of a program, the second field, may have spaces and brackets in it.
const char* find_state(const char* text) {
    const char* bracket = strrchr(text, ')');
    return bracket == nullptr || bracket[1] != ' ' ? nullptr : bracket + 2;
}

uint64_t number_at(const char* field, int wanted) {
    for (int at = kState; at < wanted && field != nullptr; at++) {
        field = strchr(field, ' ');
        if (field != nullptr) field++;
    }
    uint64_t number = 0;
    for (; field != nullptr && *field >= '0' && *field <= '9'; field++)
        number = number * 10 + static_cast<uint64_t>(*field - '0');
    return number;
}

}  // namespace

Alive find_program(int32_t pid, uint64_t* stack) {
    KeepErrno keep;
    char text[1024];
    long length = pid > 0 ? read_stat(pid, text, sizeof text) : -EINVAL;
    if (length == -ENOENT || length == -ESRCH) return Alive::kNo;
    const char* state = length > 0 ? find_state(text) : nullptr;
    if (state == nullptr) return Alive::kUnknown;
    *stack = number_at(state, kStack);
    return *state == 'Z' || *state == 'X' ? Alive::kNo : Alive::kYes;
}

Alive is_alive(int32_t pid, uint64_t stack) {
    uint64_t now = 0;
    Alive alive = find_program(pid, &now);
    bool told = stack != 0 && now != 0;  // a program that changes its user is not told any more
    return alive == Alive::kYes && told && now != stack ? Alive::kNo : alive;
}

}  // namespace gcr
