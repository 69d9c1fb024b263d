// SPDX-License-Identifier: Apache-2.0
//
// Channel: a program may cancel its thread during its first driver call, in which the shim connects to the daemon.
#include "core/channel.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "check.h"

namespace {

sockaddr_un address{};
gcr::Channel channel;
bool connected, came_back;

void listen_somewhere() {
    char folder[] = "/tmp/gcr-channel-XXXXXX";
    CHECK(mkdtemp(folder) != nullptr);
    address.sun_family = AF_UNIX;
    snprintf(address.sun_path, sizeof address.sun_path, "%s/s", folder);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    CHECK(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 && listen(fd, 4) == 0);
}

void listen_no_more() {
    CHECK(unlink(address.sun_path) == 0);
    *strrchr(address.sun_path, '/') = '\0';
    CHECK(rmdir(address.sun_path) == 0);
}

// The thread ends at the next cancellation point; here that must be its own.
void* connect_cancelled(void*) {
    pthread_cancel(pthread_self());
    connected = channel.connect(address.sun_path, -1);
    channel.close();
    came_back = true;
    pthread_testcancel();
    return nullptr;
}

void* run_cancelled(void* (*body)(void*)) {
    pthread_t thread;
    void* end = nullptr;
    CHECK(pthread_create(&thread, nullptr, body, nullptr) == 0 && pthread_join(thread, &end) == 0);
    return end;
}

}  // namespace

int main() {
    listen_somewhere();
    void* end = run_cancelled(connect_cancelled);
    CHECK(came_back && end == PTHREAD_CANCELED);
    CHECK(connected && !channel.open());
    CHECK(channel.connect(address.sun_path, -1));
    channel.close();
    listen_no_more();
}
