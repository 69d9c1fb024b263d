// SPDX-License-Identifier: Apache-2.0
//
// Programs that end, each in its own way, and the one that starts them.
//
//   ending_victim host                uses the device, starts a program for each line of standard input, says how it ended
//   ending_victim WAY MS CODE         uses the device, says `up`, and MS milliseconds later ends in that way with CODE
//   ending_victim code CODE           ends at once
// Built with -DVENDOR_CUDA, -DVENDOR_HIP or -DVENDOR_ACL. ENDING_HANDLER_MS: how long each exit handler of the way `handlers` takes.
//
// The host's lines: `WAY MS CODE`, answered by `up` and, once that program has ended, by `ended STATUS` (128 + n for a
// signal); and `?`, answered by `right` if every word of the host's device memory is what it was.
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ending_device.h"

enum { kBuffers = 3, kWords = 64 * 1024, kWrong = 99, kHandlerMs = 3, kPauseUs = 3000, kExecMs = 5 };

static device_pointer buffers[kBuffers];
static const char* self;
static int code;
static _Atomic int idle;  // set by the main thread: the other one is to leave the driver alone

static void must(int result, const char* what) {
    if (!result) return;
    fprintf(stderr, "ending_victim %d: %s returned %d\n", (int)getpid(), what, result);
    _exit(kWrong);
}

static void enter(void) {
    must(load(), "dlopen and dlsym");
    must(begin(), "the first calls");
    for (int i = 0; i < kBuffers; i++) {
        must(allocate(&buffers[i], kWords * 4), "an allocation");
        must(fill(buffers[i], (unsigned char)i, kWords * 4), "a fill");
    }
}

static int all_right(void) {
    static uint32_t words[kWords];
    for (int i = 0; i < kBuffers; i++) {
        must(download(words, buffers[i], sizeof words), "a download");
        for (int at = 0; at < kWords; at++)
            if (words[at] != (uint32_t)i * 0x01010101u) return 0;
    }
    return 1;
}

// ---- ends ---------------------------------------------------------------------------------------------------------

// The driver has shut down, or not yet: whether it says the same of everything is what a program may count on.
static void call_the_driver(int buffer) {
    const char* wanted = getenv("ENDING_HANDLER_MS");
    size_t left, all;
    int before = memory_left(&left, &all);
    usleep((unsigned)(wanted ? atoi(wanted) : kHandlerMs) * 1000);
    int after = give_back(buffers[buffer]);
    if (before == 0) must(after != 0 && after != kShutDown, "a release in a handler, after a query succeeded");
    if (before == kShutDown) must(after != kShutDown, "a release in a handler of a driver that has shut down");
}

static void late_handler(void) {
    must(!all_right(), "the words in a handler that comes before the driver's");
    call_the_driver(kBuffers - 1);
}

static void early_handler(void) {
    call_the_driver(kBuffers - 2);
}

static void exit_by_return(void) {}

static void* exit_here(void* argument) {
    (void)argument;
    exit(code);
}

static void exit_in_thread(void) {
    pthread_t thread;
    must(pthread_create(&thread, NULL, exit_here, NULL), "pthread_create");
    for (;;) synchronize();
}

static void exit_quickly(void) {
    quick_exit(code);
}

static void exit_at_once(void) {
    _exit(code);
}

static void be_killed(void) {
    raise(SIGKILL);
}

static void become_daemon(void) {
    if (fork()) return;
    setsid();
    if (fork()) _exit(0);
    usleep(kPauseUs);
    exit(0);  // with the handlers that the first process registered
}

static void execute(void) {
    char number[16];
    snprintf(number, sizeof number, "%d", code);
    execl(self, self, "code", number, (char*)NULL);
    must(errno, "execl");
}

static void execute_another(void) {
    char number[16], wait[16];
    snprintf(number, sizeof number, "%d", code);
    snprintf(wait, sizeof wait, "%d", kExecMs);
    execl(self, self, "again", wait, number, (char*)NULL);
    must(errno, "execl");
}

static void reset_context(void) {
    must(reset(), "a reset");
    usleep(kPauseUs);
}

static void release_context(void) {
    must(release(), "a release of the device");
    usleep(kPauseUs);
}

static void unload(void) {
    dlclose(library);
    usleep(kPauseUs);
}

static const struct way {
    const char* name;
    void (*end)(void);
    int works;  // a second thread uses the driver meanwhile, and goes on
} kWays[] = {
    {"return", exit_by_return, 1},   {"thread", exit_in_thread, 0}, {"quick", exit_quickly, 1},
    {"handlers", exit_by_return, 0}, {"daemon", become_daemon, 0},  {"exec", execute, 1},
    {"another", execute_another, 1}, {"again", exit_by_return, 0},  {"reset", reset_context, 0},
    {"release", release_context, 0}, {"unload", unload, 0},         {"_exit", exit_at_once, 1},
    {"killed", be_killed, 1},
};

static void* work(void* argument) {
    (void)argument;
    if (use()) return NULL;
    while (!idle && !fill(buffers[0], 0, kWords * 4)) {  // until the driver has shut down
    }
    return NULL;
}

static int end(const struct way* way, unsigned milliseconds) {
    int handlers = !strcmp(way->name, "handlers");
    if (handlers) atexit(early_handler);
    enter();
    if (handlers) atexit(late_handler);
    pthread_t thread;
    if (way->works) must(pthread_create(&thread, NULL, work, NULL), "pthread_create");
    if (strcmp(way->name, "again")) puts("up");
    fflush(stdout);
    usleep(milliseconds * 1000);
    must(!all_right(), "the words at the end");
    way->end();
    return code;
}

// ---- the host -----------------------------------------------------------------------------------------------------

static pid_t start(char** words) {
    pid_t child = fork();
    if (child) return child;
    execv(self, words);
    _exit(kWrong);
}

static int status_of(pid_t child) {
    int status;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

static void run(char* line) {
    char* words[5] = {(char*)self};
    for (int i = 1; i < 4; i++) words[i] = strtok(i == 1 ? line : NULL, " \n");
    must(!words[3], "a line of three words");
    int status = status_of(start(words));
    printf("ended %d\n", status);
}

static int host(void) {
    char line[64];
    enter();
    puts("ready");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        if (line[0] == '?')
            puts(all_right() ? "right" : "wrong");
        else
            run(line);
        fflush(stdout);
    }
    return 0;
}

int main(int count, char** values) {
    self = "/proc/self/exe";
    code = count > 2 ? atoi(values[count - 1]) : 0;
    if (count == 2 && !strcmp(values[1], "host")) return host();
    if (count == 3 && !strcmp(values[1], "code")) return code;
    for (size_t i = 0; count == 4 && i < sizeof kWays / sizeof *kWays; i++)
        if (!strcmp(values[1], kWays[i].name)) return end(&kWays[i], (unsigned)atoi(values[2]));
    fprintf(stderr, "ending_victim: no such way\n");
    return kWrong;
}
