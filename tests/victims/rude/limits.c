// SPDX-License-Identifier: Apache-2.0
//
// Limits: few descriptors, little address space; and a program that closes what it never opened.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "rude.h"

enum { kCloseRange = 436 };  // x86-64

static void set_limit(int which, unsigned long to) {
    struct rlimit limit = {to, to};
    must(setrlimit(which, &limit), "setrlimit");
}

static const char* limit_files(const char* argument) {
    set_limit(RLIMIT_NOFILE, strtoul(argument, NULL, 10));
    return "ok";
}

// Megabytes more than are mapped.
static const char* limit_memory(const char* argument) {
    unsigned long pages = 0;
    FILE* file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%lu", &pages) != 1) fail("statm");
    fclose(file);
    set_limit(RLIMIT_AS, pages * 4096 + (strtoul(argument, NULL, 10) << 20));
    return "ok";
}

static const char* limit_threads(const char* argument) {
    set_limit(RLIMIT_NPROC, strtoul(argument, NULL, 10));
    return "ok";
}

// The driver's own among them: bare, too, it is of no use any more.
static const char* close_everything(const char* argument) {
    (void)argument;
    must((int)syscall(kCloseRange, 3u, ~0u, 0u), "close_range");
    return "ok";
}

// ---- closes what is not there without gcr, and puts files of its own in those places, again and again ------------------

static bool leads_to_daemon(int fd) {
    struct sockaddr_un peer;
    socklen_t length = sizeof peer;
    const char* path = getenv("GCR_SOCKET");
    memset(&peer, 0, sizeof peer);
    return path && getpeername(fd, (struct sockaddr*)&peer, &length) == 0 && strcmp(peer.sun_path, path) == 0;
}

static bool is_arena(int fd) {
    char link[64], target[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, target, sizeof target - 1);
    if (length <= 0) return false;
    target[length] = 0;
    return strncmp(target, "/memfd:gcr", 10) == 0;
}

static bool is_same_file(int a, int b) {
    struct stat one, two;
    return fstat(a, &one) == 0 && fstat(b, &two) == 0 && one.st_dev == two.st_dev && one.st_ino == two.st_ino;
}

static void take_over_once(void) {
    static int own = -1;
    int taken[64], count = 0;
    if (own < 0) own = open("/dev/null", O_RDWR);
    for (int fd = 3; fd < 2048 && count < 64; fd++)
        if ((leads_to_daemon(fd) || is_arena(fd)) && dup2(own, fd) == fd) taken[count++] = fd;
    usleep(5000);
    for (int i = 0; i < count; i++) {
        if (!is_same_file(own, taken[i])) fail("a file of the program's was closed or replaced");
        close(taken[i]);
    }
    use_device(31, 100);
}

const struct word limit_words[] = {
    {"limit_files", limit_files},
    {"limit_memory", limit_memory},
    {"limit_threads", limit_threads},
    {"close_everything", close_everything},
    {0},
};
const struct rude_storm limit_storms[] = {{"takeovers", take_over_once}, {0}};
