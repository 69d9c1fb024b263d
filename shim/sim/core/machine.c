// SPDX-License-Identifier: Apache-2.0
//
// Opening the machine's directory and its table.
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "table.h"

struct sim_table* sim_table;
static char directory[PATH_MAX - 64];
static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;

static uint64_t from_environment(const char* name, uint64_t otherwise) {
    const char* text = getenv(name);
    return text && *text ? strtoull(text, NULL, 0) : otherwise;
}

static uint32_t quirk_named(const char* name) {
    static const struct {
        const char* name;
        enum sim_quirk quirk;
    } quirks[] = {{"leak", SIM_QUIRK_LEAK},          {"leak-hard", SIM_QUIRK_LEAK_HARD},
                  {"noexport", SIM_QUIRK_NOEXPORT},  {"elsewhere", SIM_QUIRK_ELSEWHERE},
                  {"fabric", SIM_QUIRK_FABRIC},      {"host-numa", SIM_QUIRK_HOST_NUMA},
                  {"multicast", SIM_QUIRK_MULTICAST}};
    for (size_t i = 0; i < sizeof quirks / sizeof *quirks; i++)
        if (!strcmp(quirks[i].name, name)) return quirks[i].quirk;
    return 0;
}

// An unknown name makes no machine: a test would otherwise pass without its quirk.
static bool quirks_from_environment(uint32_t* quirks) {
    const char* list = getenv("GCR_SIM_QUIRKS");
    char copy[256], *rest = copy, *name;
    snprintf(copy, sizeof copy, "%s", list ? list : "");
    for (*quirks = 0; (name = strsep(&rest, ","));) {
        uint32_t quirk = quirk_named(name);
        if (*name && !quirk) return false;
        *quirks |= quirk;
    }
    return true;
}

// `0-2,1-2`. What is no list of pairs makes no machine, as an unknown name does.
static bool pairs_from_environment(uint32_t apart[SIM_MAX_DEVICES]) {
    const char* at = getenv("GCR_SIM_NO_P2P");
    while (at && *at) {
        unsigned one, other;
        int length = 0;
        if (sscanf(at, "%u-%u%n", &one, &other, &length) < 2 || (at[length] && at[length] != ',')) return false;
        if (one >= SIM_MAX_DEVICES || other >= SIM_MAX_DEVICES || one == other) return false;
        apart[one] |= 1u << other;
        apart[other] |= 1u << one;
        at += length + (at[length] == ',');
    }
    return true;
}

// MAJOR.MINOR[.PATCH] in the runtime's decimal packing.
static bool hip_version_from_environment(uint32_t* version) {
    const char* text = getenv("GCR_SIM_HIP_VERSION");
    unsigned major, minor, patch = 0;
    if (sscanf(text && *text ? text : "7.2", "%u.%u.%u", &major, &minor, &patch) < 2) return false;
    *version = major * 10000000 + minor * 100000 + patch;
    return true;
}

static struct sim_config configured(void) {
    uint64_t devices = from_environment("GCR_SIM_DEVICES", 2);
    struct sim_config config = {
        .devices = devices > SIM_MAX_DEVICES ? SIM_MAX_DEVICES : (uint32_t)devices,
        .control_ms = (uint32_t)from_environment("GCR_SIM_CONTROL_MS", 3),
        .memory = from_environment("GCR_SIM_MEMORY", 2ull << 30),
        .granularity = from_environment("GCR_SIM_GRANULARITY", 2ull << 20),
        .context_bytes = from_environment("GCR_SIM_CONTEXT_BYTES", 16ull << 20),
        .copy_bps = from_environment("GCR_SIM_BPS", 0),
        .number = (uint32_t)from_environment("GCR_SIM_MACHINE", 0) & 255,
        .queue = (uint32_t)from_environment("GCR_SIM_QUEUE", 1024),
    };
    if (!config.queue) config.queue = 1;
    if (config.granularity < SIM_PAGE || (config.granularity & (config.granularity - 1))) config.granularity = 2u << 20;
    return config;
}

static bool make_directory(const char* path) {
    return mkdir(path, 0700) == 0 || errno == EEXIST;
}

static bool choose_directory(void) {
    const char* wanted = getenv("GCR_SIM_STATE");
    int length = wanted && *wanted ? snprintf(directory, sizeof directory, "%s", wanted)
                                   : snprintf(directory, sizeof directory, "/dev/shm/gcr-sim-%u", (unsigned)getuid());
    if (length < 0 || (size_t)length >= sizeof directory || !make_directory(directory)) return false;
    struct stat status;
    // A directory of another user, or one that others can write to, is not our machine.
    return stat(directory, &status) == 0 && status.st_uid == getuid() && !(status.st_mode & 022);
}

static bool make_subdirectory(const char* name) {
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    return make_directory(path);
}

static bool make_mutex(pthread_mutex_t* mutex) {
    pthread_mutexattr_t attributes;
    if (pthread_mutexattr_init(&attributes)) return false;
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    bool made = pthread_mutex_init(mutex, &attributes) == 0;
    pthread_mutexattr_destroy(&attributes);
    return made;
}

static bool fill_table(struct sim_table* table) {
    if (table->magic == SIM_TABLE_MAGIC) return true;
    if (table->magic) memset(table, 0, sizeof *table);  // left by a build with another layout
    table->config = configured();
    if (!quirks_from_environment(&table->config.quirks)) return false;
    if (!pairs_from_environment(table->config.apart)) return false;
    if (!hip_version_from_environment(&table->config.hip_version)) return false;
    table->first_free = SIM_NO_ENTRY;
    table->next_generation = 1;
    if (!make_mutex(&table->mutex) || !make_mutex(&table->files) || !make_mutex(&table->watcher)) return false;
    table->magic = SIM_TABLE_MAGIC;  // last: a creator that died before this is replaced by the next
    return true;
}

static struct sim_table* map_table(int file) {
    if (flock(file, LOCK_EX) || ftruncate(file, sizeof(struct sim_table))) return NULL;
    void* memory = mmap(NULL, sizeof(struct sim_table), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED) return NULL;
    if (fill_table(memory)) return memory;
    munmap(memory, sizeof(struct sim_table));
    return NULL;
}

static struct sim_table* open_table(void) {
    if (!choose_directory() || !make_subdirectory("physical")) return NULL;
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/machine", directory);
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0) return NULL;
    struct sim_table* table = map_table(file);
    flock(file, LOCK_UN);  // explicitly: a fork between open and close must not keep the creator's lock
    close(file);
    return table;
}

sim_result sim_machine_open(void) {
    pthread_mutex_lock(&opening);
    if (!sim_table) sim_table = open_table();
    sim_result result = sim_table ? SIM_OK : SIM_OPERATING_SYSTEM;
    pthread_mutex_unlock(&opening);
    return result;
}

const struct sim_config* sim_machine_config(void) {
    return &sim_table->config;
}

bool sim_machine_has_quirk(enum sim_quirk quirk) {
    return sim_table->config.quirks & quirk;
}

bool sim_machine_reaches(unsigned device, unsigned peer) {
    return !(sim_table->config.apart[device] >> peer & 1);
}

const char* sim_machine_directory(void) {
    return directory;
}

void sim_machine_uuid_of(unsigned machine, unsigned device, uint8_t uuid[16]) {
    memcpy(uuid, "SIMULATED-GPU-", 14);
    uuid[14] = (uint8_t)machine;
    uuid[15] = (uint8_t)device;
}

void sim_machine_uuid(unsigned device, uint8_t uuid[16]) {
    sim_machine_uuid_of(sim_table->config.number, device, uuid);
}

uint64_t sim_machine_unique_id(unsigned device) {
    return 0x53494d0000000000u + (sim_table->config.number << 8) + device;  // "SIM"
}

// A process that died with the lock may have left the sums and the free list half done; the entries are the truth.
static void repair(void) {
    memset(sim_table->used, 0, sizeof sim_table->used);
    sim_table->first_free = SIM_NO_ENTRY;
    for (uint32_t slot = 0; slot < sim_table->high; slot++) {
        struct sim_table_entry* entry = &sim_table->entries[slot];
        if (entry->state == SIM_ENTRY_LIVE && entry->device < SIM_MAX_DEVICES) {
            sim_table->used[entry->device] += entry->size;
        } else {
            entry->next_free = sim_table->first_free;
            sim_table->first_free = slot;
        }
    }
}

void sim_table_lock(void) {
    if (pthread_mutex_lock(&sim_table->mutex) != EOWNERDEAD) return;
    repair();
    pthread_mutex_consistent(&sim_table->mutex);
}

void sim_table_unlock(void) {
    pthread_mutex_unlock(&sim_table->mutex);
}

static void take(pthread_mutex_t* mutex) {
    if (pthread_mutex_lock(mutex) == EOWNERDEAD) pthread_mutex_consistent(mutex);
}

void sim_machine_lock_files(void) {
    take(&sim_table->files);
}

void sim_machine_unlock_files(void) {
    pthread_mutex_unlock(&sim_table->files);  // not ours any more where CRIU brought us back in between
}

void sim_machine_become_watcher(void) {
    take(&sim_table->watcher);
}
