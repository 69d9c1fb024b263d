// SPDX-License-Identifier: Apache-2.0
//
// Stands for CRIU's amdgpu plugin: CRIU loads it, and it saves and remakes what a process has on a simulated device.
//
//   PAUSE_DEVICES        the process runs: its device memory goes to its own host memory, which CRIU saves
//   DUMP_EXT_FILE        the descriptor that stands for /dev/kfd: which machine it is of, into the image
//   RESTORE_EXT_FILE     the same machine must be there, as it was: a descriptor again
//   RESUME_DEVICES_LATE  its device memory is made again. CRIU passes over a failure of this one
//
// The numbers and shapes of CRIU's interface are those of its version 4.1.
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include "process.h"
#include "table.h"

enum { DUMP_EXT_FILE = 2, RESTORE_EXT_FILE = 3, RESUME_DEVICES_LATE = 9, PAUSE_DEVICES = 10, HOOKS = 12 };
enum { STAGE_DUMP = 0, INTERFACE = 2 << 8 };
enum { KFD_MAJOR = 10, KFD_MINOR = 229, LOCK_MS = 10000, MAX_PAUSED = 256, MAX_LINE = PATH_MAX + 128 };

struct cr_plugin_desc {
    const char* name;
    int (*init)(int stage);
    void (*exit)(int stage, int ret);
    unsigned version;
    unsigned max_hooks;
    void* hooks[HOOKS];
};

extern int criu_get_image_dir(void);  // CRIU has it

struct saved {  // an image of the descriptor
    char folder[PATH_MAX];
    struct sim_config machine;
};

static char folder[PATH_MAX];  // of the machine of the process that is looked at
static int paused[MAX_PAUSED];
static unsigned paused_count;

// core/service.c is linked for its caller's side: this library is in no process of the machine.
const char* sim_machine_directory(void) {
    return folder;
}

const char* sim_front_service(void) {
    return "gcr-kfd";
}

void sim_sleep_ms(unsigned milliseconds) {
    usleep(milliseconds * 1000);
}

void sim_service_perform(const struct sim_service_request* request, struct sim_service_reply* reply) {
    (void)request;
    reply->result = SIM_NOT_SUPPORTED;
}

// ---- the process and its machine ------------------------------------------------------------------------------------
// Leaves the folder of the machine that the process runs on in `folder`; false if it runs on none.
static bool find_machine(int pid) {
    static const char suffix[] = "/machine\n";
    char path[64], line[MAX_LINE];
    snprintf(path, sizeof path, "/proc/%d/maps", pid);
    FILE* maps = fopen(path, "re");
    if (!maps) return false;
    bool runtime = false, found = false;
    while (fgets(line, sizeof line, maps)) {
        char* name = strchr(line, '/');
        size_t length = name ? strlen(name) : 0;
        if (name && strstr(name, "/libamdhip64.so")) runtime = true;
        if (length < sizeof suffix || strcmp(name + length - (sizeof suffix - 1), suffix)) continue;
        found = true;
        snprintf(folder, sizeof folder, "%.*s", (int)(length - (sizeof suffix - 1)), name);
    }
    fclose(maps);
    return runtime && found;
}

static int ask(int pid, enum sim_service_operation operation, uint32_t timeout_ms) {
    struct sim_service_request request = {.operation = operation, .timeout_ms = timeout_ms};
    struct sim_service_reply reply = {0};
    sim_result result = sim_service_ask(pid, &request, &reply);
    return result ? -1 : 0;
}

static bool read_machine(struct sim_config* machine) {
    char path[PATH_MAX + 16];
    snprintf(path, sizeof path, "%s/machine", folder);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return false;
    bool whole = pread(file, machine, sizeof *machine, offsetof(struct sim_table, config)) == (ssize_t)sizeof *machine;
    close(file);
    return whole;
}

// ---- a process that stands still ------------------------------------------------------------------------------------
// CRIU traces all threads. The one that takes requests runs for as long as the request takes; it blocks all signals.
static bool takes_requests(int pid, const char* thread) {
    char path[64], name[32] = "";
    snprintf(path, sizeof path, "/proc/%d/task/%.10s/comm", pid, thread);
    FILE* file = fopen(path, "re");
    if (!file) return false;
    bool read = fgets(name, sizeof name, file);
    fclose(file);
    return read && !strcmp(name, SIM_SERVICE_NAME "\n");
}

static int service_of(int pid) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task", pid);
    DIR* threads = opendir(path);
    if (!threads) return 0;
    int found = 0;
    for (struct dirent* each; !found && (each = readdir(threads));)
        if (takes_requests(pid, each->d_name)) found = atoi(each->d_name);
    closedir(threads);
    return found;
}

static bool run(int thread) {
    return thread && ptrace(PTRACE_CONT, thread, NULL, NULL) == 0;
}

static bool stop(int thread) {
    int status;
    return ptrace(PTRACE_INTERRUPT, thread, NULL, NULL) == 0 && waitpid(thread, &status, __WALL) == thread &&
           WIFSTOPPED(status);
}

static int remake(int pid) {
    int thread = service_of(pid);
    if (!find_machine(pid) || !run(thread)) return -1;
    int restored = ask(pid, SIM_SERVICE_RESTORE, 0);
    int unlocked = ask(pid, SIM_SERVICE_UNLOCK, 0);  // also one that was locked, and could not be checkpointed
    return !stop(thread) || restored || unlocked ? -1 : 0;
}

// ---- hooks ----------------------------------------------------------------------------------------------------------
static int pause_devices(int pid) {
    if (!find_machine(pid)) return 0;
    if (paused_count == MAX_PAUSED || ask(pid, SIM_SERVICE_LOCK, LOCK_MS)) return -1;
    paused[paused_count++] = pid;
    return ask(pid, SIM_SERVICE_CHECKPOINT, 0);
}

static void name_of(char name[64], int id) {
    snprintf(name, 64, "amdgpu-kfd-%d.img", id);
}

static int dump_file(int fd, int id) {
    struct stat status;
    struct saved saved = {{0}};
    char name[64];
    if (fstat(fd, &status) || !S_ISCHR(status.st_mode) || status.st_rdev != makedev(KFD_MAJOR, KFD_MINOR))
        return -ENOTSUP;
    if (!paused_count || !read_machine(&saved.machine)) return -1;
    memcpy(saved.folder, folder, sizeof folder);
    name_of(name, id);
    int file = openat(criu_get_image_dir(), name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (file < 0) return -1;
    bool whole = write(file, &saved, sizeof saved) == (ssize_t)sizeof saved;
    close(file);
    return whole ? 0 : -1;
}

// The device must be as it was: what the process keeps of it, its addresses and handles, is right for no other.
static int restore_file(int id) {
    struct saved saved;
    struct sim_config now;
    char name[64];
    name_of(name, id);
    int file = openat(criu_get_image_dir(), name, O_RDONLY | O_CLOEXEC);
    if (file < 0) return -ENOTSUP;
    bool whole = read(file, &saved, sizeof saved) == (ssize_t)sizeof saved;
    close(file);
    if (!whole) return -1;
    memcpy(folder, saved.folder, sizeof folder);
    bool same = read_machine(&now) && now.devices == saved.machine.devices && now.memory == saved.machine.memory &&
                now.hip_version == saved.machine.hip_version && now.number == saved.machine.number;
    if (!same) return -1;
    return open("/dev/fuse", O_RDWR | O_CLOEXEC);
}

static int resume_devices_late(int pid) {
    return find_machine(pid) ? remake(pid) : -ENOTSUP;
}

static int begin(int stage) {
    (void)stage;
    return 0;
}

// The tree may run on: CRIU does not tell. Where it is ended instead, that is in vain and does no harm.
static void end(int stage, int ret) {
    (void)ret;
    for (unsigned i = 0; stage == STAGE_DUMP && i < paused_count; i++) remake(paused[i]);
}

__attribute__((visibility("default"))) struct cr_plugin_desc CR_PLUGIN_DESC = {
    .name = "amdgpu_plugin",
    .init = begin,
    .exit = end,
    .version = INTERFACE,
    .max_hooks = HOOKS,
    .hooks =
        {
            [DUMP_EXT_FILE] = (void*)dump_file,
            [RESTORE_EXT_FILE] = (void*)restore_file,
            [RESUME_DEVICES_LATE] = (void*)resume_devices_late,
            [PAUSE_DEVICES] = (void*)pause_devices,
        },
};
