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
#include "core/identity.h"
#include "core/life.h"
#include "core/lock.h"
#include "core/session.h"
#include "core/sys.h"
#include "core/threads.h"

namespace gcr {
namespace {

constexpr uint64_t kMagic = 0x32444e454c524347ull;  // "GCRLEND2"
constexpr uint32_t kVisitMs = 1000;  // how long a visitor may take to say what it wants
constexpr uint32_t kAnswerMs = 10000;
constexpr int kListenMs = 500;  // also how soon a socket closed by the program is noticed
constexpr int kBacklog = 64;

struct Lender {
    Lock lock;  // for the thread that begins
    std::atomic<uint32_t> there{0};
    OwnedFd socket;  // the lender's thread alone, once it is there
};
Lender lender;

enum Errand : uint32_t { kBorrow = 1, kReturn = 2 };

struct Visit {
    Blob blob;
    uint64_t visitor;  // its Identity
    uint32_t errand;
    uint32_t reserved;
};

struct Answer {
    uint32_t granted;
    uint32_t reserved;
    Lent lent;
};

socklen_t address_of(uint64_t process, sockaddr_un* address) {
    *address = {};
    address->sun_family = AF_UNIX;
    int length = snprintf(address->sun_path + 1, sizeof address->sun_path - 1, "gcr-lend-%016llx",
                          static_cast<unsigned long long>(process));
    return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + static_cast<size_t>(length));
}

int new_socket(int flags = 0) {
    return socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | flags, 0);
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
bool trusted(int fd, int32_t* pid = nullptr) {
    ucred other{};
    socklen_t size = sizeof other;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &other, &size) != 0) return false;
    if (pid != nullptr) *pid = other.pid;
    return other.uid == 0 || other.uid == static_cast<uid_t>(syscall(SYS_geteuid));
}

// A process that CRIU brought back has its socket under the same number, as another file.
bool listens_at(int fd, const sockaddr_un& address, socklen_t length) {
    sockaddr_un found{};
    socklen_t size = sizeof found, flag = sizeof(int);
    int listens = 0;
    return fd >= 0 && getsockname(fd, reinterpret_cast<sockaddr*>(&found), &size) == 0 && size == length &&
           memcmp(&found, &address, length) == 0 && getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &flag) == 0 &&
           listens != 0;
}

bool listen_here() {
    sockaddr_un address;
    const Identity* own = identity();
    if (own == nullptr) return false;
    socklen_t length = address_of(own->process, &address);
    if (listens_at(lender.socket.get(), address, length)) {
        lender.socket.adopt(lender.socket.get());
        return true;
    }
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
    const Identity* own = identity();
    if (own == nullptr || blob.magic != kMagic || blob.process != own->process) return false;
    return ((blob.secret[0] ^ own->secret[0]) | (blob.secret[1] ^ own->secret[1])) == 0;
}

void lend_to(int fd, const Blob& blob, const Borrower& borrower) {
    Answer answer{};
    int descriptor = -1;
    bool granted = session.vendors.lend(blob, borrower, &answer.lent, &descriptor);
    answer.granted = granted ? 1 : 0;
    if (!send_answer(fd, &answer, descriptor) && granted)
        session.vendors.take_back_loan(blob_of(blob, answer.lent.handle), borrower);
    if (descriptor >= 0) close_now(descriptor);
}

void serve(int fd) {
    Visit visit;
    Borrower borrower{};
    wait_at_most(fd, kVisitMs);
    bool whole = trusted(fd, &borrower.pid) &&
                 syscall(SYS_recvfrom, fd, &visit, sizeof visit, MSG_TRUNC, nullptr, nullptr) == sizeof visit;
    if (!whole || !bears_the_secret(visit.blob)) return;
    borrower.process = visit.visitor;
    if (find_program(borrower.pid, &borrower.stack) != Alive::kYes) borrower.pid = 0;  // nor will its end be seen
    if (visit.errand == kBorrow) lend_to(fd, visit.blob, borrower);
    if (visit.errand == kReturn) session.vendors.take_back_loan(visit.blob, borrower);
}

// In flight, so that no call is made while the gate is closed; inside it whatever a runtime calls goes straight on. The
// call of another process may wait for this thread, as for a communication library's own.
void enter_vendors() {
    GateEntry in_flight;
    become_helper();
    session.vendors.enter_thread();
}

void* live(void*) {
    enter_vendors();
    while (true) {
        if (!lender.socket.still_ours() && !listen_here()) {
            sleep_us(kListenMs * 1000);
            continue;
        }
        pollfd entry{lender.socket.get(), POLLIN, 0};
        timespec limit{0, kListenMs * 1000000l};
        long ready = syscall(SYS_ppoll, &entry, 1, &limit, nullptr, 0);
        if (ready == 0) session.vendors.forget_dead_borrowers();  // one that has died returns nothing
        if (ready <= 0 || !lender.socket.still_ours()) continue;
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
    if (!listen_here()) return false;
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
    const Identity* own = identity();
    *blob = {kMagic, own->process, {own->secret[0], own->secret[1]}, 0, 0, vendor, 0};
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
    const Identity* own = identity();
    Visit visit{blob, own == nullptr ? 0 : own->process, kBorrow, 0};
    auto ask = [&] { return syscall(SYS_sendto, fd, &visit, sizeof visit, MSG_NOSIGNAL, nullptr, 0); };
    bool granted = own != nullptr && uninterrupted(deadline, connect_it) == 0 && trusted(fd) &&
                   uninterrupted(deadline, ask) == sizeof visit && receive_answer(fd, deadline, &answer, descriptor);
    close_now(fd);
    *lent = answer.lent;
    return granted;
}

void return_loan(const Blob& blob) {
    KeepErrno keep;
    sockaddr_un address;
    socklen_t length = address_of(blob.process, &address);
    const Identity* own = identity();
    int fd = own == nullptr ? -1 : new_socket(SOCK_NONBLOCK);
    if (fd < 0) return;
    Visit visit{blob, own->process, kReturn, 0};
    if (syscall(SYS_connect, fd, &address, length) == 0 && trusted(fd))
        syscall(SYS_sendto, fd, &visit, sizeof visit, MSG_NOSIGNAL, nullptr, 0);
    close_now(fd);
}

void reset_lending_after_fork() {
    lender.lock.reset_after_fork();
    lender.socket.close();
    lender.there.store(0, std::memory_order_relaxed);
}

}  // namespace gcr
