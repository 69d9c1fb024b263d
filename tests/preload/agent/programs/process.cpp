// SPDX-License-Identifier: Apache-2.0
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "puppet.h"

namespace {

int open_descriptors() {
    int count = -1;  // the folder's own
    DIR* folder = opendir("/proc/self/fd");
    while (dirent* entry = readdir(folder)) count += entry->d_name[0] != '.' ? 1 : 0;
    closedir(folder);
    return count;
}

std::string descriptors(const Words&) {
    return std::to_string(open_descriptors());
}

// Of the agent: a connection to who listens at GCR_SOCKET. The simulated driver has sockets of its own.
bool leads_to_daemon(int fd) {
    sockaddr_un peer{};
    socklen_t length = sizeof peer;
    const char* path = getenv("GCR_SOCKET");
    return path != nullptr && getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &length) == 0 &&
           strcmp(peer.sun_path, path) == 0;
}

bool is_connected(int fd) {
    sockaddr_un peer{};
    socklen_t length = sizeof peer;
    return getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &length) == 0;
}

std::string sockets(const Words&) {
    int count = 0;
    for (int fd = 0; fd < 1100; fd++) count += leads_to_daemon(fd) ? 1 : 0;
    return std::to_string(count);
}

// Puts a file of the program at the number of each connection, which closes the connection. dup2 does both in one step:
// the agent connects again at once, and its new connection could take a number that is free for a moment.
std::string close_all(const Words&) {
    std::vector<int> were;
    for (int fd = 3; fd < 1100; fd++)
        if (is_connected(fd)) were.push_back(fd);
    for (int fd : were) dup2(0, fd);
    return "ok " + std::to_string(were.size());
}

std::string limit(const Words& words) {  // limit N: descriptors
    rlimit value{number(words[1]), number(words[1])};
    return setrlimit(RLIMIT_NOFILE, &value) == 0 ? "ok" : "failed";
}

std::string eat_descriptors(const Words& words) {  // eat N: until only so many are left
    std::vector<int> taken;
    for (int fd = dup(0); fd >= 0; fd = dup(0)) taken.push_back(fd);
    for (uint64_t i = 0; i < number(words[1]) && i < taken.size(); i++) close(taken[taken.size() - 1 - i]);
    return "ok";
}

std::string threads(const Words&) {
    int count = 0;
    DIR* folder = opendir("/proc/self/task");
    while (dirent* entry = readdir(folder)) count += entry->d_name[0] != '.' ? 1 : 0;
    closedir(folder);
    return std::to_string(count);
}

std::string nap(const Words& words) {  // nap MS LINE…: the line, then a while of nothing
    std::string line;
    for (size_t i = 2; i < words.size(); i++) line += words[i] + " ";
    std::string answer = run_line(line);
    usleep(static_cast<useconds_t>(number(words[1]) * 1000));
    return answer;
}

// fork LINE…: the child runs the line, then says it and how many sockets and threads it has
std::string fork_child(const Words& words) {
    int channel[2];
    if (pipe(channel) != 0) return "no pipe";
    pid_t child = fork();
    if (child == 0) {
        close(channel[0]);
        std::string line;
        for (size_t i = 1; i < words.size(); i++) line += words[i] + " ";
        std::string before = sockets({}) + " sockets " + threads({}) + " threads";
        std::string answer = before + ", " + (words.size() > 1 ? run_line(line) : "ok");
        if (write(channel[1], answer.data(), answer.size()) < 0) _exit(1);
        _exit(0);
    }
    close(channel[1]);
    char answer[256] = {};
    ssize_t length = read(channel[0], answer, sizeof answer - 1);
    close(channel[0]);
    int status = 0;
    waitpid(child, &status, 0);
    if (WIFSIGNALED(status)) return "child died of " + std::to_string(WTERMSIG(status));
    return length < 0 ? "nothing" : answer;
}

// A process made without fork()'s handlers, as by _Fork() or a sandbox of its own, that ends by exit().
std::string clone_child(const Words&) {
    pid_t child = static_cast<pid_t>(syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0));
    if (child == 0) exit(7);
    int status = 0;
    for (int waited = 0; waitpid(child, &status, WNOHANG) == 0; waited++) {
        if (waited == 3000) kill(child, SIGKILL);
        usleep(1000);
    }
    return WIFEXITED(status) ? std::to_string(WEXITSTATUS(status)) : "killed";
}

// Many short threads, each with gated calls: their slots must come back.
std::string short_threads(const Words& words) {  // shortthreads COUNT
    CUcontext context = nullptr;
    cuCtxGetCurrent(&context);
    for (uint64_t i = 0; i < number(words[1]); i++) {
        std::thread([=] {
            cuCtxSetCurrent(context);
            CUdeviceptr address = 0;
            if (cuMemAlloc_v2(&address, 512) == CUDA_SUCCESS) cuMemFree_v2(address);
        }).join();
    }
    return "ok";
}

std::string errno_kept(const Words&) {
    errno = 12345;
    CUdeviceptr address = 0;
    cuMemAlloc_v2(&address, 3 << 20);
    cuMemFree_v2(address);
    return errno == 12345 ? "kept" : std::to_string(errno);
}

std::string become(const Words& words) {  // become PATH ARGUMENT: exec
    execl(words[1].c_str(), words[1].c_str(), words[2].c_str(), nullptr);
    return "failed";
}

}  // namespace

void add_process_commands(std::map<std::string, Command>& commands) {
    commands["descriptors"] = descriptors;
    commands["sockets"] = sockets;
    commands["closeall"] = close_all;
    commands["limit"] = limit;
    commands["become"] = become;
    commands["eat"] = eat_descriptors;
    commands["threads"] = threads;
    commands["nap"] = nap;
    commands["fork"] = fork_child;
    commands["clone"] = clone_child;
    commands["shortthreads"] = short_threads;
    commands["errno"] = errno_kept;
}
