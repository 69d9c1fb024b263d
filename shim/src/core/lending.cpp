// SPDX-License-Identifier: Apache-2.0
#include "core/lending.h"

#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "core/gate.h"
#include "core/lock.h"
#include "core/session.h"
#include "core/sys.h"
#include "core/threads.h"

namespace gcr {
namespace {

constexpr uint64_t kMagic = 0x31444e454c524347ull;  // "GCRLEND1"
constexpr long kGetRandomCall = 318;  // x86-64; glibc 2.25 has the function
constexpr uint32_t kVisitMs = 1000;  // how long a visitor may take to say what it wants
constexpr uint32_t kAnswerMs = 10000;
constexpr int kListenMs = 500;  // also how soon a socket closed by the program is noticed
constexpr int kBacklog = 64;

struct Lender {
    Lock lock;  // for the thread that begins
    std::atomic<uint32_t> there{0};  // release: `name` and `secret` are set
    uint64_t name = 0;
    uint64_t secret[2] = {};
    OwnedFd socket;  // the lender's thread alone, once it is there
};
Lender lender;

struct Answer {
    uint32_t granted;
    uint32_t reserved;
    Lent lent;
};

bool draw(void* out, size_t size) {
    return syscall(kGetRandomCall, out, size, 0) == static_cast<long>(size);
}

socklen_t address_of(uint64_t name, sockaddr_un* address) {
    *address = {};
    address->sun_family = AF_UNIX;
    int length = snprintf(address->sun_path + 1, sizeof address->sun_path - 1, "gcr-lend-%016llx",
                          static_cast<unsigned long long>(name));
    return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + static_cast<size_t>(length));
}

int new_socket() {
    return socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
}

void close_now(int fd) {
    syscall(SYS_close, fd);
}

void wait_at_most(int fd, uint32_t milliseconds) {
    timeval limit{milliseconds / 1000, static_cast<long>(milliseconds % 1000) * 1000};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
}

// A program's signal handlers interrupt a call that has a timeout, also where they ask for it to be restarted.
template <typename Call>
long uninterrupted(const Deadline& deadline, Call call) {
    long result = call();
    while (result < 0 && errno == EINTR && !deadline.passed()) result = call();
    return result;
}

// Of the same user, or of root, which may look into this process anyway.
bool trusted(int fd) {
    ucred other{};
    socklen_t size = sizeof other;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &other, &size) != 0) return false;
    return other.uid == 0 || other.uid == static_cast<uid_t>(syscall(SYS_geteuid));
}

bool listen_as(uint64_t name) {
    sockaddr_un address;
    socklen_t length = address_of(name, &address);
    int fd = new_socket();
    if (fd < 0) return false;
    if (bind(fd, reinterpret_cast<sockaddr*>(&address), length) != 0 || listen(fd, kBacklog) != 0) {
        close_now(fd);
        return false;
    }
    lender.socket.adopt(fd);
    return true;
}

// ---- one frame, one descriptor ----------------------------------------------------------------------------------------

union Control {
    cmsghdr header;
    char room[CMSG_SPACE(sizeof(int))];
};

bool send_answer(int fd, Answer* answer, int descriptor) {
    iovec part{answer, sizeof *answer};
    Control control{};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    if (descriptor >= 0) {
        message.msg_control = &control;
        message.msg_controllen = sizeof control;
        control.header = cmsghdr{CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
        memcpy(CMSG_DATA(&control.header), &descriptor, sizeof descriptor);
    }
    return syscall(SYS_sendmsg, fd, &message, MSG_NOSIGNAL) == static_cast<long>(sizeof *answer);
}

bool receive_answer(int fd, const Deadline& deadline, Answer* answer, int* descriptor) {
    iovec part{answer, sizeof *answer};
    Control control{};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = &control;
    message.msg_controllen = sizeof control;
    long received = uninterrupted(deadline, [&] { return syscall(SYS_recvmsg, fd, &message, MSG_CMSG_CLOEXEC); });
    if (received < 0) return false;
    cmsghdr* rights = CMSG_FIRSTHDR(&message);
    if (rights == nullptr || rights->cmsg_type != SCM_RIGHTS || rights->cmsg_len != CMSG_LEN(sizeof(int))) return false;
    memcpy(descriptor, CMSG_DATA(rights), sizeof *descriptor);
    if (received == static_cast<long>(sizeof *answer) && answer->granted != 0) return true;
    close_now(*descriptor);
    return false;
}

// ---- the lender -------------------------------------------------------------------------------------------------------

bool bears_the_secret(const Blob& blob) {
    uint64_t wrong = (blob.secret[0] ^ lender.secret[0]) | (blob.secret[1] ^ lender.secret[1]);
    return blob.magic == kMagic && blob.process == lender.name && wrong == 0;
}

void serve(int fd) {
    Blob blob;
    wait_at_most(fd, kVisitMs);
    if (!trusted(fd) || syscall(SYS_recvfrom, fd, &blob, sizeof blob, MSG_TRUNC, nullptr, nullptr) != sizeof blob)
        return;
    Answer answer{};
    int descriptor = -1;
    if (bears_the_secret(blob)) answer.granted = session.vendors.lend(blob, &answer.lent, &descriptor) ? 1 : 0;
    send_answer(fd, &answer, descriptor);
    if (descriptor >= 0) close_now(descriptor);
}

// In flight, so that no call is made while the gate is closed; inside it whatever a runtime calls goes straight on.
void enter_vendors() {
    GateEntry in_flight;
    session.vendors.enter_thread();
}

void* live(void*) {
    enter_vendors();
    while (true) {
        if (!lender.socket.still_ours() && !listen_as(lender.name)) {
            sleep_us(kListenMs * 1000);
            continue;
        }
        pollfd entry{lender.socket.get(), POLLIN, 0};
        timespec limit{0, kListenMs * 1000000l};
        if (syscall(SYS_ppoll, &entry, 1, &limit, nullptr, 0) <= 0 || !lender.socket.still_ours()) continue;
        long visitor = syscall(SYS_accept4, lender.socket.get(), nullptr, nullptr, SOCK_CLOEXEC);
        if (visitor < 0) {
            sleep_us(1000);  // no descriptor left, or it went away
            continue;
        }
        serve(static_cast<int>(visitor));
        close_now(static_cast<int>(visitor));
    }
}

bool begin() {
    Guard guard(lender.lock);
    if (lender.there.load(std::memory_order_acquire) != 0) return true;
    if (!draw(&lender.name, sizeof lender.name) || !draw(lender.secret, sizeof lender.secret)) return false;
    if (!listen_as(lender.name)) return false;
    if (!start_thread(live, nullptr)) {
        lender.socket.close();
        return false;
    }
    lender.there.store(1, std::memory_order_release);
    return true;
}

}  // namespace

bool begin_blob(Blob* blob, uint32_t vendor) {
    KeepErrno keep;
    if (lender.there.load(std::memory_order_acquire) == 0 && !begin()) return false;
    *blob = {kMagic, lender.name, {lender.secret[0], lender.secret[1]}, 0, 0, vendor, 0};
    return true;
}

bool is_blob(const Blob& blob, uint32_t vendor) {
    return blob.magic == kMagic && blob.vendor == vendor;
}

bool is_own(const Blob& blob) {
    return lender.there.load(std::memory_order_acquire) != 0 && bears_the_secret(blob);
}

bool borrow(const Blob& blob, Lent* lent, int* descriptor) {
    KeepErrno keep;
    sockaddr_un address;
    socklen_t length = address_of(blob.process, &address);
    int fd = new_socket();
    if (fd < 0) return false;
    wait_at_most(fd, kAnswerMs);
    Answer answer{};
    Deadline deadline(kAnswerMs);
    auto connect_it = [&] { return syscall(SYS_connect, fd, &address, length); };
    auto ask = [&] { return syscall(SYS_sendto, fd, &blob, sizeof blob, MSG_NOSIGNAL, nullptr, 0); };
    bool granted = uninterrupted(deadline, connect_it) == 0 && trusted(fd) &&
                   uninterrupted(deadline, ask) == sizeof blob && receive_answer(fd, deadline, &answer, descriptor);
    close_now(fd);
    *lent = answer.lent;
    return granted;
}

void reset_lending_after_fork() {
    lender.lock.reset_after_fork();
    lender.socket.close();
    lender.there.store(0, std::memory_order_relaxed);
}

}  // namespace gcr
