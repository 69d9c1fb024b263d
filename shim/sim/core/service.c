// SPDX-License-Identifier: Apache-2.0
//
// The checkpoint service: a thread in every process that started the driver, and the way others reach it. The
// operation runs here, in the target, so a caller may die in the middle of it: the target finishes (measured on r580,
// docs/design.md). Our threads block all signals.
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "machine.h"
#include "pids.h"
#include "process.h"

static int listener = -1;
static struct sockaddr_un own;
static socklen_t own_length;
static atomic_int thread_id;

static uint64_t hash_of(const char* text) {  // FNV-1a
    uint64_t hash = 0xcbf29ce484222325u;
    while (*text) hash = (hash ^ (unsigned char)*text++) * 0x100000001b3u;
    return hash;
}

// An abstract name: CRIU saves and restores such a listener, and a folder's path may be longer than an address.
static socklen_t address_of(int pid, struct sockaddr_un* address) {
    char folder[PATH_MAX];
    const char* machine = realpath(sim_machine_directory(), folder) ? folder : sim_machine_directory();
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    int length = snprintf(address->sun_path + 1, sizeof address->sun_path - 1, "%s-%016llx-%d", sim_front_service(),
                          (unsigned long long)hash_of(machine), pid);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
}

// An abstract name is no file that a folder would keep from other users.
static bool may_ask(int connection) {
    struct ucred caller;
    socklen_t size = sizeof caller;
    if (getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &caller, &size)) return false;
    return caller.uid == 0 || caller.uid == geteuid();
}

static void* serve(void* argument) {
    int connection = (int)(intptr_t)argument;
    struct sim_service_request request;
    struct sim_service_reply reply = {0};
    if (may_ask(connection) && recv(connection, &request, sizeof request, 0) == (ssize_t)sizeof request) {
        sim_service_perform(&request, &reply);
        (void)!send(connection, &reply, sizeof reply, MSG_NOSIGNAL);  // the caller may be gone
    }
    close(connection);
    return NULL;
}

static void* listen_for_callers(void* argument) {
    (void)argument;
    atomic_store(&thread_id, (int)syscall(SYS_gettid));
    prctl(PR_SET_NAME, SIM_SERVICE_NAME);
    for (;;) {
        int connection = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (connection < 0 && (errno == EBADF || errno == EINVAL)) return NULL;  // the program closed our descriptor
        if (connection < 0) {
            sim_sleep_ms(1);
            continue;
        }
        pthread_t thread;
        // A thread per caller: asking for the state must work while an operation takes its time.
        if (pthread_create(&thread, NULL, serve, (void*)(intptr_t)connection))
            close(connection);
        else
            pthread_detach(thread);
    }
}

static bool open_listener(void) {
    own_length = address_of(getpid(), &own);
    listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    return listener >= 0 && !bind(listener, (struct sockaddr*)&own, own_length) && !listen(listener, 16);
}

// The program may have closed our descriptor, and have a file of its own under the number.
static bool is_listener(int descriptor) {
    struct sockaddr_un found;
    socklen_t size = sizeof found;
    bool named = !getsockname(descriptor, (struct sockaddr*)&found, &size);
    return named && size == own_length && !memcmp(&found, &own, size);
}

// Or the child would keep the name from a process that exec or a new pid puts in the parent's place.
static void forget_in_child(void) {
    int saved = errno;
    if (is_listener(listener)) close(listener);
    errno = saved;
}

bool sim_service_start(void) {
    if (!open_listener() || pthread_atfork(NULL, NULL, forget_in_child)) return false;
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    pthread_t thread;
    bool made = pthread_create(&thread, NULL, listen_for_callers, NULL) == 0;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (made) pthread_detach(thread);
    return made;
}

// ---- for a front that has nothing of its own to do ------------------------------------------------------------------
__attribute__((weak)) bool sim_front_start(void) {
    return sim_service_start();
}

__attribute__((weak)) const char* sim_front_service(void) {
    return "gcr-sim";
}

__attribute__((weak)) void sim_front_saved(void) {}

__attribute__((weak)) void sim_front_restored(void) {}

int sim_service_thread(void) {
    return atomic_load(&thread_id);
}

sim_result sim_service_ask(int pid, const struct sim_service_request* request, struct sim_service_reply* reply) {
    struct sockaddr_un address;
    bool exists = pid > 0 && (kill(pid, 0) == 0 || errno == EPERM);
    if (!exists) return SIM_OPERATING_SYSTEM;
    socklen_t length = address_of(sim_own_pid(pid), &address);
    int connection = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    bool connected = connection >= 0 && connect(connection, (struct sockaddr*)&address, length) == 0;
    if (connection < 0) return SIM_OPERATING_SYSTEM;
    sim_result result = SIM_NOT_INITIALIZED;  // it does not run the driver
    if (connected) {
        bool answered = send(connection, request, sizeof *request, MSG_NOSIGNAL) == (ssize_t)sizeof *request &&
                        recv(connection, reply, sizeof *reply, 0) == (ssize_t)sizeof *reply;
        result = answered ? (sim_result)reply->result : SIM_OPERATING_SYSTEM;
    }
    close(connection);
    return result;
}
