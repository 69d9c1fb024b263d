// SPDX-License-Identifier: Apache-2.0
#include "pids.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

unsigned sim_space_of(int pid) {
    char path[64], name[64];
    snprintf(path, sizeof path, "/proc/%d/ns/pid", pid);
    ssize_t length = readlink(path, name, sizeof name - 1);
    if (length <= 0) return pid == getpid() ? 0 : sim_space_of(getpid());  // another user's: as good as ours
    name[length] = 0;
    const char* inode = strchr(name, '[');
    return inode ? (unsigned)strtoull(inode + 1, NULL, 10) & ((1u << SIM_SPACE_BITS) - 1) : 0;
}

int sim_own_pid(int pid) {
    char path[64], line[256];
    snprintf(path, sizeof path, "/proc/%d/status", pid);
    FILE* file = fopen(path, "re");
    int own = pid;
    while (file && fgets(line, sizeof line, file))
        if (!strncmp(line, "NSpid:", 6)) own = atoi(strrchr(line, '\t') + 1);  // the last is the innermost
    if (file) fclose(file);
    return own;
}

int sim_pid_here(unsigned space, int own) {
    DIR* all = opendir("/proc");
    int found = 0;
    for (struct dirent* each; all && !found && (each = readdir(all));) {
        int pid = atoi(each->d_name);
        if (pid > 0 && sim_space_of(pid) == space && sim_own_pid(pid) == own) found = pid;
    }
    if (all) closedir(all);
    return found;
}
