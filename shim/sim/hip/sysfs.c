// SPDX-License-Identifier: Apache-2.0
//
// What the kernel shows of AMD devices, as files of the same names and contents under <state>/sys:
//
//   bus/pci/devices/<address>/mem_info_vram_used, mem_info_vram_total
//   class/kfd/kfd/topology/nodes/<n>/gpu_id, properties      node 0 is the CPU's
//   class/kfd/kfd/proc/<pid>/vram_<gpu_id>                   gone with the process
//
// Files cannot count by themselves. A process brings them up to date when it starts and after each of its calls that
// took or gave memory; what happens otherwise (a death, a descriptor closed) is seen by one process of the machine,
// which looks again and again: WATCH_MS late at most, and while no process runs the runtime, not at all.
#include "sysfs.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "machine.h"
#include "memory.h"

enum { WATCH_MS = 50, GPU_ID_BASE = 51000, MAX_HOLDERS = 1024, MAX_TEXT = 128 };

static char root[PATH_MAX / 2];
static atomic_bool ready;
static atomic_bool resting, looking;  // of the thread that watches: looking is set before resting is read
static atomic_ulong written;  // the state of this process's memory that the files show

// ---- files --------------------------------------------------------------------------------------------------------
__attribute__((format(printf, 2, 3))) static void path_of(char path[PATH_MAX], const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int length = snprintf(path, PATH_MAX, "%s/", root);
    vsnprintf(path + length, (size_t)(PATH_MAX - length), format, arguments);
    va_end(arguments);
}

static void make_parents(char path[PATH_MAX]) {
    for (char* slash = strchr(path + strlen(root), '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        mkdir(path, 0700);  // one that is there is right
        *slash = '/';
    }
}

// By renaming, so that a reader finds all of it.
static void write_text(char path[PATH_MAX], const char* text) {
    char scratch[PATH_MAX];
    path_of(scratch, "scratch.%d", getpid());  // a process that CRIU brought back writes without the lock
    int file = open(scratch, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (file < 0) return;
    bool whole = write(file, text, strlen(text)) == (ssize_t)strlen(text);
    close(file);
    if (!whole || rename(scratch, path) == 0) return;
    make_parents(path);  // the first time
    rename(scratch, path);
}

// Of one width, and overwritten in place: replacing files on a disk at every allocation takes ten times as long.
static void write_number(char path[PATH_MAX], uint64_t number) {
    char text[MAX_TEXT];
    int length = snprintf(text, sizeof text, "%20llu\n", (unsigned long long)number);
    int file = open(path, O_WRONLY | O_CLOEXEC);
    if (file < 0) {
        write_text(path, text);
        return;
    }
    (void)!pwrite(file, text, (size_t)length, 0);  // a full disk: the number stays as it was
    close(file);
}

// ---- devices ------------------------------------------------------------------------------------------------------
static void write_node(unsigned node, uint64_t gpu_id, const char* properties) {
    char path[PATH_MAX];
    path_of(path, "class/kfd/kfd/topology/nodes/%u/gpu_id", node);
    write_number(path, gpu_id);
    path_of(path, "class/kfd/kfd/topology/nodes/%u/properties", node);
    write_text(path, properties);
}

static void write_device(unsigned device) {
    char path[PATH_MAX], properties[MAX_TEXT];
    snprintf(properties, sizeof properties, "location_id %u\ndomain 0\nunique_id %llu\n", (device + 1) << 8,
             (unsigned long long)sim_machine_unique_id(device));
    write_node(device + 1, GPU_ID_BASE + device, properties);
    path_of(path, "bus/pci/devices/0000:%02x:00.0/mem_info_vram_total", device + 1);
    write_number(path, sim_machine_config()->memory);
}

static void write_used(unsigned device) {
    char path[PATH_MAX];
    path_of(path, "bus/pci/devices/0000:%02x:00.0/mem_info_vram_used", device + 1);
    write_number(path, sim_machine_used(device));
}

// ---- processes ----------------------------------------------------------------------------------------------------
// The folder is reached through the process's own root: the link leads nowhere once the process is gone. The folder is
// made first: a watcher takes a link to nothing for a process that is gone.
static void add_process(int pid) {
    char link[PATH_MAX], target[PATH_MAX];
    for (unsigned device = 0; device < sim_machine_config()->devices; device++) {
        path_of(target, "processes/%d/vram_%u", pid, GPU_ID_BASE + device);
        write_number(target, 0);
    }
    path_of(link, "class/kfd/kfd/proc/%d", pid);
    make_parents(link);
    snprintf(target, sizeof target, "/proc/%d/root%s/processes/%d", pid, root, pid);
    unlink(link);  // left by a dead process that had our pid
    (void)!symlink(target, link);
}

static void remove_process(const char* pid) {
    char path[PATH_MAX];
    for (unsigned device = 0; device < sim_machine_config()->devices; device++) {
        path_of(path, "processes/%s/vram_%u", pid, GPU_ID_BASE + device);
        unlink(path);
    }
    path_of(path, "processes/%s", pid);
    rmdir(path);
    path_of(path, "class/kfd/kfd/proc/%s", pid);
    unlink(path);
}

static uint64_t bytes_of(const struct sim_holder* holders, size_t count, int pid) {
    for (size_t i = 0; i < count; i++)
        if (holders[i].pid == pid) return holders[i].bytes;
    return 0;
}

static bool is_gone(const char* pid) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%.20s", pid);
    return access(path, F_OK) != 0;
}

static void write_process(const char* pid, unsigned device, const struct sim_holder* holders, size_t count) {
    char path[PATH_MAX];
    struct stat status;
    path_of(path, "class/kfd/kfd/proc/%s", pid);
    if (stat(path, &status)) {
        if (is_gone(pid)) remove_process(pid);  // else CRIU may be bringing it back under a link that was left
        return;
    }
    path_of(path, "processes/%s/vram_%u", pid, GPU_ID_BASE + device);
    write_number(path, bytes_of(holders, count, atoi(pid)));
}

static void write_processes(unsigned device) {
    struct sim_holder holders[MAX_HOLDERS];
    size_t count = sim_machine_holders(device, holders, MAX_HOLDERS);
    if (count > MAX_HOLDERS) count = MAX_HOLDERS;
    char path[PATH_MAX];
    path_of(path, "class/kfd/kfd/proc");
    DIR* folder = opendir(path);
    if (!folder) return;
    struct dirent* entry;
    while ((entry = readdir(folder)))
        if (entry->d_name[0] != '.') write_process(entry->d_name, device, holders, count);
    closedir(folder);
}

// ---- when ---------------------------------------------------------------------------------------------------------
// One writer at a time, who counts meanwhile: what is written last is the newest.
static void refresh(void) {
    sim_machine_lock_files();
    for (unsigned device = 0; device < sim_machine_config()->devices; device++) {
        write_used(device);
        write_processes(device);
    }
    sim_machine_unlock_files();
}

// Only what this process can have changed.
void front_sysfs_update(void) {
    unsigned long now = sim_physical_changes();
    if (!atomic_load(&ready) || atomic_exchange(&written, now) == now) return;
    sim_machine_lock_files();
    for (unsigned device = 0; device < sim_machine_config()->devices; device++) {
        char path[PATH_MAX];
        struct sim_holder holders[MAX_HOLDERS];
        size_t count = sim_machine_holders(device, holders, MAX_HOLDERS);
        path_of(path, "processes/%d/vram_%u", getpid(), GPU_ID_BASE + device);
        write_number(path, bytes_of(holders, count < MAX_HOLDERS ? count : MAX_HOLDERS, getpid()));
        write_used(device);
    }
    sim_machine_unlock_files();
}

static void* watch(void* unused) {
    (void)unused;
    sim_machine_become_watcher();
    for (;;) {
        atomic_store(&looking, true);
        if (!atomic_load(&resting)) refresh();
        atomic_store(&looking, false);
        sim_sleep_ms(WATCH_MS);
    }
}

static void start_watching(void) {
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);  // inherited: the program's signals are not ours to take
    pthread_t thread;
    if (pthread_create(&thread, NULL, watch, NULL) == 0) pthread_detach(thread);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
}

bool front_sysfs_start(void) {
    char state[PATH_MAX];
    if (!realpath(sim_machine_directory(), state)) return false;
    if ((size_t)snprintf(root, sizeof root, "%s/sys", state) >= sizeof root) return false;
    mkdir(root, 0700);
    sim_machine_lock_files();
    write_node(0, 0, "cpu_cores_count 1\n");
    for (unsigned device = 0; device < sim_machine_config()->devices; device++) write_device(device);
    add_process(getpid());
    sim_machine_unlock_files();
    atomic_store(&ready, true);
    refresh();
    start_watching();
    return true;
}

void front_sysfs_rest(void) {
    atomic_store(&resting, true);
    while (atomic_load(&looking)) sim_sleep_ms(1);
    char pid[16];
    snprintf(pid, sizeof pid, "%d", getpid());
    remove_process(pid);  // by a name that would lead to whatever process has the pid later
}

// Without a lock: other threads of this process may be held still.
void front_sysfs_restored(void) {
    add_process(getpid());
    atomic_store(&resting, false);
}
