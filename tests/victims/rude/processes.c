// SPDX-License-Identifier: Apache-2.0
//
// Processes: children of every kind, other user ids, other programs in the same process, ends of every kind.
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "rude.h"

extern char** environ;

enum { kNotInitialized = 3 };

static void must_end_well(pid_t child) {
    int status = -1;
    if (child < 0) fail("no child");
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
    if (status != 0) fail("a child did not end well");
}

// ---- children -------------------------------------------------------------------------------------------------------

static void fork_and_end(void) {
    pid_t child = fork();
    if (child == 0) _exit(0);
    must_end_well(child);
}

static void fork_and_exec(void) {
    pid_t child = fork();
    if (child == 0) {
        execl("/bin/true", "true", NULL);
        _exit(1);
    }
    must_end_well(child);
}

// The driver does not work in a child of a process that had started it, and says so.
static void fork_and_call(void) {
    pid_t child = fork();
    if (child == 0) {
        device_pointer at;
        _exit(cuMemAlloc_v2(&at, 4096) != kNotInitialized);
    }
    must_end_well(child);
}

static void vfork_and_exec(void) {
    pid_t child = vfork();
    if (child == 0) {
        execl("/bin/true", "true", NULL);
        _exit(1);
    }
    must_end_well(child);
}

static void spawn(void) {
    char* words[] = {"true", NULL};
    pid_t child;
    must(posix_spawn(&child, "/bin/true", NULL, NULL, words, environ), "posix_spawn");
    must_end_well(child);
}

static void children_once(void) {
    void (*kinds[])(void) = {fork_and_end, fork_and_exec, fork_and_call, vfork_and_exec, spawn};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        kinds[i]();
        use_device(17, 100);
    }
}

// ---- ids: libc has every thread of the process change them, and waits for all ------------------------------------------

static void ids_once(void) {
    must(setresuid(getuid(), geteuid(), -1), "setresuid");
    must(setresgid(getgid(), getegid(), -1), "setresgid");
    use_device(19, 100);
}

static const char* become(const char* argument) {
    uid_t user = (uid_t)atoi(argument);
    must(setresgid(user, user, user), "setresgid");
    must(setresuid(user, user, user), "setresuid");
    return "ok";
}

static const char* change_root(const char* argument) {
    must(chroot(argument), "chroot");
    must(chdir("/"), "chdir");
    return "ok";
}

static const char* leave_namespaces(const char* argument) {
    (void)argument;
    must(unshare(CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWNET), "unshare");
    return "ok";
}

// ---- another program in this process: by a thread that may be in no driver call while all others wait -------------------

static const char* run_again(const char* argument) {
    (void)argument;
    execve("/proc/self/exe", arguments, environ);
    return "no exec";
}

static const char* run_again_without_preload(const char* argument) {
    unsetenv("LD_PRELOAD");
    return run_again(argument);
}

static const char* run_shell(const char* argument) {
    (void)argument;
    execl("/bin/sh", "sh", "-c", "echo ready; while read line; do echo $line; done", NULL);
    return "no exec";
}

// ---- sleep that no signal but a kill ends (state D): the parent of a vfork, until the child ends or runs a program --------

static pthread_t sleeper;
static int alarm_clock[2];

static void* sleep_in_kernel(void* argument) {
    char byte;
    pid_t child = vfork();
    if (child == 0) {
        if (read(alarm_clock[0], &byte, 1) != 1) _exit(1);
        _exit(0);
    }
    must_end_well(child);
    return argument;
}

static int threads_in_state(char wanted) {
    int found = 0;
    char path[64], line[512];
    DIR* tasks = opendir("/proc/self/task");
    for (struct dirent* task; tasks && (task = readdir(tasks));) {
        snprintf(path, sizeof path, "/proc/self/task/%.20s/stat", task->d_name);
        FILE* file = fopen(path, "r");
        if (!file) continue;
        if (fgets(line, sizeof line, file) && strrchr(line, ')')) found += strrchr(line, ')')[2] == wanted;
        fclose(file);
    }
    if (tasks) closedir(tasks);
    return found;
}

static const char* begin_sleep(const char* argument) {
    (void)argument;
    must(pipe(alarm_clock), "pipe");
    must(pthread_create(&sleeper, NULL, sleep_in_kernel, NULL), "pthread_create");
    while (threads_in_state('D') == 0) usleep(1000);
    return "ok";
}

static const char* say_asleep(const char* argument) {
    (void)argument;
    return threads_in_state('D') == 1 ? "asleep" : "awake";
}

static const char* end_sleep(const char* argument) {
    (void)argument;
    if (write(alarm_clock[1], "!", 1) != 1) fail("the alarm clock is broken");
    must(pthread_join(sleeper, NULL), "pthread_join");
    return "ok";
}

// ---- ends --------------------------------------------------------------------------------------------------------------

static void* keep_calling(void* argument) {
    enter(0);
    for (;;) use_device(23, 1000);
    return argument;
}

// Three threads that are always in the driver, or wait to be let in.
static const char* be_busy(const char* argument) {
    pthread_t thread;
    (void)argument;
    for (int i = 0; i < 3; i++) must(pthread_create(&thread, NULL, keep_calling, NULL), "pthread_create");
    return "ok";
}

static const char* end(const char* argument) {
    _exit(atoi(argument));
}

static void* go_on(void* argument) {
    enter(0);
    converse();
    return argument;
}

// The first thread ends, the process does not.
static const char* leave_main(const char* argument) {
    pthread_t thread;
    (void)argument;
    must(pthread_create(&thread, NULL, go_on, NULL), "pthread_create");
    if (write(1, "ok\n", 3) != 3) _exit(1);
    pthread_exit(NULL);
}

// As servers do: the grandchild goes on, and our parent sees us end.
static const char* daemonize(const char* argument) {
    (void)argument;
    if (fork() > 0) _exit(0);
    setsid();
    return run_again(argument);
}

const struct word process_words[] = {
    {"become", become},
    {"chroot", change_root},
    {"unshare", leave_namespaces},
    {"exec", run_again},
    {"exec_without_preload", run_again_without_preload},
    {"exec_shell", run_shell},
    {"busy", be_busy},
    {"sleep", begin_sleep},
    {"asleep", say_asleep},
    {"wake", end_sleep},
    {"end", end},
    {"leave_main", leave_main},
    {"daemonize", daemonize},
    {0},
};
const struct rude_storm process_storms[] = {{"children", children_once}, {"ids", ids_once}, {0}};
