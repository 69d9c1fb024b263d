// SPDX-License-Identifier: Apache-2.0
#include "core/channel.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

namespace gcr {
namespace {

constexpr uint32_t kSendDeadlineMs = 5000;
constexpr size_t kControlBytes = CMSG_SPACE(sizeof(int) * wire::kMaxDescriptors);

// Out of the way of a program that counts on the lowest free number, and of select().
int move_up(int fd) {
    rlimit limit{};
    int low = 64;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur > 128)
        low = static_cast<int>(limit.rlim_cur > 1024 ? 960 : limit.rlim_cur - 64);
    int moved = fcntl(fd, F_DUPFD_CLOEXEC, low);
    if (moved < 0) return fd;
    close_descriptor(fd);
    return moved;
}

bool wait_for(int fd, short events, uint32_t timeout_us) {
    pollfd entry{fd, events, 0};
    timespec limit{timeout_us / 1000000, static_cast<long>(timeout_us % 1000000) * 1000};
    return syscall(SYS_ppoll, &entry, 1, &limit, nullptr, 0) > 0;
}

void take_descriptors(msghdr* message, Frame* frame) {
    for (cmsghdr* part = CMSG_FIRSTHDR(message); part != nullptr; part = CMSG_NXTHDR(message, part)) {
        if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
        uint32_t count = static_cast<uint32_t>((part->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        for (uint32_t i = 0; i < count && frame->descriptors < wire::kMaxDescriptors; i++)
            memcpy(&frame->descriptor[frame->descriptors++], CMSG_DATA(part) + i * sizeof(int), sizeof(int));
    }
    frame->descriptors_lost = (message->msg_flags & MSG_CTRUNC) != 0;
}

bool well_formed(const Frame& frame, size_t received, int flags) {
    if (received < sizeof(wire::FrameHeader) || (flags & MSG_TRUNC) != 0) return false;
    if (frame.header.magic != wire::kMagic || frame.header.version != wire::kVersion) return false;
    if (frame.header.length != received - sizeof(wire::FrameHeader)) return false;
    return frame.descriptors_lost || frame.header.descriptors == frame.descriptors;
}

// Of a socket in the file system. A path too long for it is reached through a descriptor of its folder.
class Address {
  public:
    explicit Address(const char* path) {
        address_.sun_family = AF_UNIX;
        const char* name = strrchr(path, '/');
        int length = snprintf(address_.sun_path, kRoom, "%s", path);
        if (static_cast<size_t>(length) >= kRoom && name != nullptr) length = through_folder(path, name);
        fits_ = static_cast<size_t>(length) < kRoom;
    }
    ~Address() {
        if (folder_ >= 0) close_descriptor(folder_);
    }
    Address(const Address&) = delete;
    Address& operator=(const Address&) = delete;
    bool fits() const { return fits_; }
    const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address_); }

  private:
    static constexpr size_t kRoom = sizeof(sockaddr_un::sun_path);

    int through_folder(const char* path, const char* name) {
        char folder[PATH_MAX];
        snprintf(folder, sizeof folder, "%.*s", static_cast<int>(name - path), path);
        folder_ = static_cast<int>(syscall(SYS_openat, AT_FDCWD, folder, O_PATH | O_DIRECTORY | O_CLOEXEC));
        if (folder_ < 0) return kRoom;
        return snprintf(address_.sun_path, kRoom, "/proc/self/fd/%d%s", folder_, name);
    }

    sockaddr_un address_{};
    int folder_ = -1;
    bool fits_ = false;
};

// The kernel names the listener. A path proves nothing: another user may have made its folder.
bool speaks_for_daemon(int fd, long trusted_user) {
    ucred peer{};
    socklen_t size = sizeof peer;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || size != sizeof peer) return false;
    return peer.uid == 0 || peer.uid == geteuid() ||
           (trusted_user >= 0 && peer.uid == static_cast<uid_t>(trusted_user));
}

}  // namespace

void Frame::close_descriptors() {
    for (uint32_t i = 0; i < descriptors; i++) close_descriptor(descriptor[i]);
    descriptors = 0;
}

bool Channel::connect(const char* path, long trusted_user) {
    Address address(path);
    int fd = address.fits() ? socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0) : -1;
    if (fd < 0) return false;
    fd = move_up(fd);
    bool met = syscall(SYS_connect, fd, address.get(), sizeof(sockaddr_un)) == 0;
    if (!met || !speaks_for_daemon(fd, trusted_user)) {
        close_descriptor(fd);
        return false;
    }
    Guard guard(write_lock_);
    socket_.adopt(fd);
    return true;
}

void Channel::close() {
    Guard guard(write_lock_);  // a writer may be about to use the number
    socket_.close();
}

void Channel::close_in_child() {
    write_lock_.reset_after_fork();
    socket_.close();
}

// A program that closed our descriptor gives no event: the caller comes back now and then, and still_ours() tells.
Receive Channel::receive(Frame* frame, uint32_t timeout_us) {
    if (!socket_.still_ours()) return Receive::kLost;
    if (!wait_for(socket_.get(), POLLIN, timeout_us)) return Receive::kNothing;
    if (!socket_.still_ours()) return Receive::kLost;
    alignas(cmsghdr) char control[kControlBytes];
    iovec parts[] = {{&frame->header, sizeof frame->header}, {frame->payload, sizeof frame->payload}};
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = 2;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    frame->descriptors = 0;
    ssize_t received = syscall(SYS_recvmsg, socket_.get(), &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (received < 0) return errno == EAGAIN || errno == EINTR ? Receive::kNothing : Receive::kLost;
    take_descriptors(&message, frame);
    if (well_formed(*frame, static_cast<size_t>(received), message.msg_flags)) return Receive::kFrame;
    frame->close_descriptors();
    return Receive::kLost;
}

bool Channel::send_packet(const msghdr* message, uint32_t deadline_ms) {
    Deadline deadline(deadline_ms);
    while (socket_.still_ours()) {
        if (syscall(SYS_sendmsg, socket_.get(), message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) return true;
        if (errno != EAGAIN && errno != EINTR && errno != ENOBUFS && errno != ETOOMANYREFS) return false;
        if (deadline.passed()) return false;
        if (errno == EAGAIN)
            wait_for(socket_.get(), POLLOUT, 100000);
        else
            sleep_us(1000);
    }
    return false;
}

bool Channel::send(uint16_t type, uint64_t request, const iovec* parts, int part_count, const int* descriptors,
                   uint32_t descriptor_count) {
    return send_within(kSendDeadlineMs, type, request, parts, part_count, descriptors, descriptor_count);
}

bool Channel::send_within(uint32_t deadline_ms, uint16_t type, uint64_t request, const iovec* parts, int part_count,
                          const int* descriptors, uint32_t descriptor_count) {
    KeepErrno keep;
    constexpr int kParts = 5;
    wire::FrameHeader header{wire::kMagic, wire::kVersion, type, request, 0, descriptor_count};
    iovec all[kParts] = {{&header, sizeof header}};
    for (int i = 0; i < part_count && i + 1 < kParts; i++) {
        all[i + 1] = parts[i];
        header.length += static_cast<uint32_t>(parts[i].iov_len);
    }
    alignas(cmsghdr) char control[kControlBytes];
    msghdr message{};
    message.msg_iov = all;
    message.msg_iovlen = static_cast<size_t>(part_count) + 1;
    if (descriptor_count > 0) {
        message.msg_control = control;
        message.msg_controllen = CMSG_SPACE(sizeof(int) * descriptor_count);
        memset(control, 0, message.msg_controllen);
        cmsghdr* rights = CMSG_FIRSTHDR(&message);
        *rights = cmsghdr{CMSG_LEN(sizeof(int) * descriptor_count), SOL_SOCKET, SCM_RIGHTS};
        memcpy(CMSG_DATA(rights), descriptors, sizeof(int) * descriptor_count);
    }
    Guard guard(write_lock_);
    return send_packet(&message, deadline_ms);
}

}  // namespace gcr
