// SPDX-License-Identifier: Apache-2.0
//
// Signals: handlers that call the driver, that jump out of what they interrupted, that run on a stack of their own;
// calls that wait and may not be interrupted.
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "rude.h"

static void handle(int number, void (*handler)(int), int flags) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
    must(sigaction(number, &action, NULL), "sigaction");
}

// ---- a timer whose handler works on the device --------------------------------------------------------------------

static pthread_t alarmed;
static atomic_ulong alarms;
static atomic_bool alarms_over;

static void on_alarm(int number) {
    (void)number;
    use_device(7, 1000);
    atomic_fetch_add(&alarms, 1);
}

// The only thread that takes them, and in no call of the driver's when it does.
static void* take_alarms(void* argument) {
    sigset_t set;
    enter(0);
    sigemptyset(&set);
    sigaddset(&set, SIGALRM);
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    while (!atomic_load(&alarms_over)) usleep(100000);
    return argument;
}

static const char* begin_alarms(const char* argument) {
    struct itimerval often = {{0, 1000}, {0, 1000}};
    sigset_t set;
    (void)argument;
    sigemptyset(&set);
    sigaddset(&set, SIGALRM);
    pthread_sigmask(SIG_BLOCK, &set, NULL);  // who comes later inherits it
    handle(SIGALRM, on_alarm, SA_RESTART);
    atomic_store(&alarms_over, false);
    must(pthread_create(&alarmed, NULL, take_alarms, NULL), "pthread_create");
    must(setitimer(ITIMER_REAL, &often, NULL), "setitimer");
    return "ok";
}

static const char* end_alarms(const char* argument) {
    struct itimerval never = {{0, 0}, {0, 0}};
    (void)argument;
    must(setitimer(ITIMER_REAL, &never, NULL), "setitimer");
    atomic_store(&alarms_over, true);
    pthread_join(alarmed, NULL);
    fprintf(stderr, "rude: %lu alarms\n", atomic_load(&alarms));
    return atomic_load(&alarms) > 0 ? "over" : "none came";
}

// ---- faults that are caught, on a stack of their own, and jumped out of ---------------------------------------------

static _Thread_local sigjmp_buf way_out;

static void on_fault(int number) {
    siglongjmp(way_out, number);
}

static void fault_once(void) {
    static char* forbidden;
    static _Thread_local char* stack;
    if (!forbidden) forbidden = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!stack) {
        stack = malloc(65536);
        stack_t own = {.ss_sp = stack, .ss_size = 65536};
        must(sigaltstack(&own, NULL), "sigaltstack");
    }
    handle(SIGSEGV, on_fault, SA_ONSTACK);
    if (sigsetjmp(way_out, 1) == 0) {
        *(volatile char*)forbidden = 1;
        fail("a fault was not raised");
    }
    use_device(11, 1000);
}

// ---- signals that are waited for, not handled ------------------------------------------------------------------------

static void realtime_once(void) {
    sigset_t set;
    siginfo_t found;
    struct timespec second = {1, 0};
    int number = SIGRTMIN + 3;
    sigemptyset(&set);
    sigaddset(&set, number);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    int fd = signalfd(-1, &set, SFD_CLOEXEC);
    must(pthread_kill(pthread_self(), number), "pthread_kill");
    struct signalfd_siginfo told;
    if (read(fd, &told, sizeof told) != sizeof told || (int)told.ssi_signo != number) fail("signalfd");
    close(fd);
    must(pthread_kill(pthread_self(), number), "pthread_kill");
    if (sigtimedwait(&set, &found, &second) != number) fail("sigtimedwait");
    use_device(13, 100);
}

// ---- calls that wait: they must not be interrupted ------------------------------------------------------------------------

static int ends[2];
static sem_t never;
static pthread_t waiter;  // the last of them
static atomic_uint waiting, interrupted;

static void count(long result) {
    if (result < 0 && errno == EINTR) atomic_fetch_add(&interrupted, 1);
}

static void* wait_in_read(void* argument) {
    char byte;
    atomic_fetch_add(&waiting, 1);
    for (;;) count(read(ends[0], &byte, 1));
    return argument;
}

static void* wait_in_poll(void* argument) {
    struct pollfd entry = {ends[0], POLLIN, 0};
    atomic_fetch_add(&waiting, 1);
    for (;;) count(poll(&entry, 1, -1));
    return argument;
}

static void* wait_in_sleep(void* argument) {
    struct timespec while_ = {3600, 0};
    atomic_fetch_add(&waiting, 1);
    for (;;) count(nanosleep(&while_, NULL));
    return argument;
}

static void* wait_in_semaphore(void* argument) {
    atomic_fetch_add(&waiting, 1);
    for (;;) count(sem_wait(&never));
    return argument;
}

static const char* begin_waits(const char* argument) {
    void* (*waits[])(void*) = {wait_in_read, wait_in_poll, wait_in_sleep, wait_in_semaphore};
    (void)argument;
    must(pipe(ends), "pipe");
    must(sem_init(&never, 0, 0), "sem_init");
    for (size_t i = 0; i < sizeof waits / sizeof *waits; i++)
        must(pthread_create(&waiter, NULL, waits[i], NULL), "pthread_create");
    while (atomic_load(&waiting) < 4) usleep(1000);
    return "ok";
}

static const char* say_interrupted(const char* argument) {
    static char line[32];
    (void)argument;
    snprintf(line, sizeof line, "%u interrupted", atomic_load(&interrupted));
    return line;
}

// The test's own: the count does move when a signal comes.
static void nothing(int number) {
    (void)number;
}

static const char* interrupt(const char* argument) {
    unsigned before = atomic_load(&interrupted);
    (void)argument;
    handle(SIGUSR2, nothing, 0);
    pthread_kill(waiter, SIGUSR2);
    for (int tries = 0; tries < 10000 && atomic_load(&interrupted) == before; tries++) usleep(1000);
    return "ok";
}

const struct word signal_words[] = {
    {"alarms", begin_alarms},         {"end_alarms", end_alarms}, {"waits", begin_waits},
    {"interrupted", say_interrupted}, {"interrupt", interrupt},   {0},
};
const struct rude_storm signal_storms[] = {{"faults", fault_once}, {"realtime", realtime_once}, {0}};
