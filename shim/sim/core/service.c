// SPDX-License-Identifier: Apache-2.0
//
// The checkpoint service: a thread in every process that started the driver, and the way others reach it. The
// operation runs here, in the target, so a caller may die in the middle of it: the target finishes (measured on r580,
// docs/design.md). Our threads block all signals.
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "machine.h"
#include "process.h"

static int listener = -1;
static atomic_int thread_id;

// Through a descriptor of its folder, the caller's to close: the path itself may be too long. -1: there is none.
static int address_of(int pid, struct sockaddr_un* address) {
    char folder[PATH_MAX];
    snprintf(folder, sizeof folder, "%s/process", sim_machine_directory());
    int descriptor = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    snprintf(address->sun_path, sizeof address->sun_path, "/proc/self/fd/%d/%d", descriptor, pid);
    return descriptor;
}

static void* serve(void* argument) {
    int connection = (int)(intptr_t)argument;
    struct sim_service_request request;
    struct sim_service_reply reply = {0};
    if (recv(connection, &request, sizeof request, 0) == (ssize_t)sizeof request) {
        sim_service_perform(&request, &reply);
        (void)!send(connection, &reply, sizeof reply, MSG_NOSIGNAL);  // the caller may be gone
    }
    close(connection);
    return NULL;
}

static void* listen_for_callers(void* argument) {
    (void)argument;
    atomic_store(&thread_id, (int)syscall(SYS_gettid));
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
    struct sockaddr_un address;
    int folder = address_of(getpid(), &address);
    if (folder < 0) return false;
    unlink(address.sun_path);  // left by a dead process that had our pid
    listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    bool bound = listener >= 0 && bind(listener, (struct sockaddr*)&address, sizeof address) == 0;
    close(folder);
    return bound && listen(listener, 16) == 0;
}

bool sim_service_start(void) {
    if (!open_listener()) return false;
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    pthread_t thread;
    bool made = pthread_create(&thread, NULL, listen_for_callers, NULL) == 0;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (made) pthread_detach(thread);
    return made;
}

int sim_service_thread(void) {
    return atomic_load(&thread_id);
}

sim_result sim_service_ask(int pid, const struct sim_service_request* request, struct sim_service_reply* reply) {
    struct sockaddr_un address;
    bool exists = pid > 0 && (kill(pid, 0) == 0 || errno == EPERM);
    int folder = exists ? address_of(pid, &address) : -1;
    if (folder < 0) return SIM_OPERATING_SYSTEM;
    int connection = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    bool connected = connection >= 0 && connect(connection, (struct sockaddr*)&address, sizeof address) == 0;
    close(folder);
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
