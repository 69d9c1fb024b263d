// SPDX-License-Identifier: Apache-2.0
//
// Physical allocations of the machine. Each is a file. Its open file descriptions tell which processes hold it.
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "pids.h"
#include "table.h"

static void entry_path(const struct sim_entry* entry, char path[PATH_MAX]) {
    snprintf(path, PATH_MAX, "%s/physical/%u-%llu", sim_machine_directory(), entry->slot,
             (unsigned long long)entry->generation);
}

// ---- living processes ----------------------------------------------------------------------------------------------
// Of /proc/PID/stat, as proc(5) counts them; the command may hold blanks and parentheses.
static const char* field_of(const char* text, int number) {
    const char* field = strrchr(text, ')');  // the second ends here
    for (int i = 2; field && i < number; i++) field = strchr(field + 1, ' ');
    return field ? field + 1 : "X";
}

// CRIU restores a process into a time namespace of its own, and start times are told in the time of the reader.
static uint64_t ahead_in_ticks(void) {
    long long seconds = 0, nanoseconds = 0;
    FILE* file = fopen("/proc/self/timens_offsets", "re");
    bool told = file && fscanf(file, "monotonic %*s %*s boottime %lld %lld", &seconds, &nanoseconds) == 2;
    if (file) fclose(file);
    return told ? (uint64_t)((seconds * 1000000000 + nanoseconds) / (1000000000 / sysconf(_SC_CLK_TCK))) : 0;
}

// A key has 10 bits of the namespace of pids, the pid there (22), 16 bits of when it started, 16 of where its stack is:
// each exec chooses that anew, and what a driver had for the program ends with its descriptors. The last are 0 where the
// kernel does not say, as once the first thread has ended. The whole is 0 for a process that is gone.
static int pid_in(uint64_t key) {
    return (int)(key >> 32 & ((1u << SIM_PID_BITS) - 1));
}

static unsigned space_in(uint64_t key) {
    return (unsigned)(key >> (32 + SIM_PID_BITS));
}

// Its pid in our namespace; 0 where the process is not to be seen.
static int seen_as(uint64_t key) {
    return space_in(key) == sim_space_of(getpid()) ? pid_in(key) : sim_pid_here(space_in(key), pid_in(key));
}

static uint64_t holder_key(int pid) {
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return 0;
    ssize_t length = read(file, text, sizeof text - 1);
    close(file);
    if (length <= 0) return 0;
    text[length] = 0;
    const char* state = field_of(text, 3);
    bool zombie = *state == 'Z' && strtoull(field_of(text, 20), NULL, 10) <= 1;  // its first thread may end first
    if (*state == 'X' || zombie) return 0;
    uint16_t start = (uint16_t)(strtoull(field_of(text, 22), NULL, 10) - ahead_in_ticks());
    uint16_t stack = (uint16_t)(strtoull(field_of(text, 28), NULL, 10) >> 4);
    uint64_t who = (uint64_t)sim_space_of(pid) << SIM_PID_BITS | (uint32_t)sim_own_pid(pid);
    return who << 32 | (uint32_t)start << 16 | stack;
}

// Two readers in different time namespaces may round by a tick.
static bool is_same(uint64_t one, uint64_t other) {
    bool told = (uint16_t)one && (uint16_t)other;
    uint16_t between = (uint16_t)((one >> 16) - (other >> 16) + 1);
    return one >> 32 == other >> 32 && between <= 2 && (!told || (uint16_t)one == (uint16_t)other);
}

static atomic_uint renewals;  // how often this process may have come back from a dump

void sim_machine_begin_anew(void) {
    atomic_fetch_add(&renewals, 1);
}

uint64_t sim_own_key(void) {
    static _Thread_local uint64_t key;
    static _Thread_local unsigned seen;
    unsigned now = atomic_load(&renewals);
    if (pid_in(key) != getpid() || seen != now) key = holder_key(getpid());  // a fork changes it, and a restore
    seen = now;
    return key;
}

bool sim_is_own_key(uint64_t key) {
    return is_same(key, sim_own_key());
}

// One scan asks for each process once.
struct census {
    uint64_t keys[64];
    unsigned char alive[64];
    unsigned count;
};

enum life { GONE, ALIVE, UNSEEN };  // unseen: in a namespace that is not below ours, as far as can be told

static enum life life_of(uint64_t key) {
    int pid = seen_as(key);
    if (!pid) return UNSEEN;
    return is_same(holder_key(pid), key) ? ALIVE : GONE;
}

bool sim_is_gone(uint64_t key) {
    return life_of(key) == GONE;
}

static enum life is_alive(struct census* census, uint64_t key) {
    for (unsigned i = 0; i < census->count; i++)
        if (census->keys[i] == key) return census->alive[i];
    enum life alive = life_of(key);
    if (census->count < 64) {
        census->keys[census->count] = key;
        census->alive[census->count++] = (unsigned char)alive;
    }
    return alive;
}

// ---- slots, with the table locked ---------------------------------------------------------------------------------
static struct sim_table_entry* take_slot(uint32_t* slot) {
    *slot = sim_table->first_free;
    if (*slot != SIM_NO_ENTRY)
        sim_table->first_free = sim_table->entries[*slot].next_free;
    else if (sim_table->high < SIM_ENTRIES)
        *slot = sim_table->high++;
    else
        return NULL;
    return &sim_table->entries[*slot];
}

static void free_slot(uint32_t slot) {
    struct sim_table_entry* entry = &sim_table->entries[slot];
    char path[PATH_MAX];
    entry_path(&(struct sim_entry){slot, entry->generation}, path);
    unlink(path);
    entry->state = SIM_ENTRY_FREE;
    sim_table->used[entry->device] -= entry->size;
    entry->next_free = sim_table->first_free;
    sim_table->first_free = slot;
}

static bool nobody_holds(uint32_t slot, const struct sim_table_entry* entry) {
    char path[PATH_MAX];
    entry_path(&(struct sim_entry){slot, entry->generation}, path);
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0) return errno == ENOENT;
    bool nobody = flock(file, LOCK_EX | LOCK_NB) == 0;
    close(file);
    return nobody;
}

static void drop_holder(struct sim_table_entry* entry, uint64_t key) {
    for (unsigned i = 0; i < SIM_HOLDERS; i++)
        if (entry->holders[i] && is_same(entry->holders[i], key)) entry->holders[i] = 0;
    if (entry->maker && is_same(entry->maker, key)) entry->maker = 0;
}

static bool known_holder_lives(struct sim_table_entry* entry, struct census* census) {
    bool lives = false;
    for (unsigned i = 0; i < SIM_HOLDERS; i++) {
        if (!entry->holders[i]) continue;
        enum life life = is_alive(census, entry->holders[i]);
        if (life == ALIVE) lives = true;
        if (life == GONE) drop_holder(entry, entry->holders[i]);  // of one that is unseen, flock tells
    }
    return lives;
}

static void reap(unsigned device) {
    struct census census = {.count = 0};
    for (uint32_t slot = 0; slot < sim_table->high; slot++) {
        struct sim_table_entry* entry = &sim_table->entries[slot];
        if (entry->state != SIM_ENTRY_LIVE || entry->device != device) continue;
        if (!known_holder_lives(entry, &census) && nobody_holds(slot, entry)) free_slot(slot);
    }
}

static bool add_holder(struct sim_table_entry* entry, uint64_t key) {
    for (unsigned i = 0; i < SIM_HOLDERS; i++)
        if (entry->holders[i] && is_same(entry->holders[i], key)) return true;
    for (unsigned i = 0; i < SIM_HOLDERS; i++) {
        if (entry->holders[i]) continue;
        entry->holders[i] = key;
        return true;
    }
    return false;  // more holders than places: flock still knows
}

static struct sim_table_entry* find_entry(const struct sim_entry* name) {
    if (name->slot >= SIM_ENTRIES) return NULL;
    struct sim_table_entry* entry = &sim_table->entries[name->slot];
    return entry->state == SIM_ENTRY_LIVE && entry->generation == name->generation ? entry : NULL;
}

static sim_result claim(unsigned device, uint64_t size, struct sim_entry* name) {
    if (sim_table->used[device] + size > sim_table->config.memory) reap(device);
    if (sim_table->used[device] + size > sim_table->config.memory) return SIM_OUT_OF_MEMORY;
    struct sim_table_entry* entry = take_slot(&name->slot);
    if (!entry) return SIM_OUT_OF_MEMORY;
    name->generation = sim_table->next_generation++;
    *entry = (struct sim_table_entry){
        .generation = name->generation, .size = size, .device = device, .next_free = SIM_NO_ENTRY};
    entry->holders[0] = entry->maker = sim_own_key();
    entry->state = SIM_ENTRY_LIVE;
    sim_table->used[device] += size;
    return SIM_OK;
}

// ---- files --------------------------------------------------------------------------------------------------------
static bool write_trailer(int file, const struct sim_entry* entry, uint64_t size) {
    struct sim_trailer trailer = {SIM_TABLE_MAGIC, *entry, size};
    return ftruncate(file, (off_t)(size + SIM_PAGE)) == 0 &&
           pwrite(file, &trailer, sizeof trailer, (off_t)size) == (ssize_t)sizeof trailer;
}

static void* map_whole(int file, uint64_t size) {
    void* view = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
    if (view == MAP_FAILED) return NULL;
    madvise(view, size, MADV_DONTFORK);  // as a driver's memory: a forked child does not hold it
    return view;
}

static void* make_file(const struct sim_entry* entry, uint64_t size) {
    char path[PATH_MAX];
    entry_path(entry, path);
    int file = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (file < 0) return NULL;
    // The mapping keeps the open file description, and with it the lock, when the descriptor is closed.
    bool ready = flock(file, LOCK_SH) == 0 && write_trailer(file, entry, size);
    void* view = ready ? map_whole(file, size) : NULL;
    close(file);
    return view;
}

sim_result sim_machine_create(unsigned device, uint64_t size, struct sim_entry* entry, void** view) {
    sim_table_lock();
    sim_result result = claim(device, size, entry);
    if (result == SIM_OK && !(*view = make_file(entry, size))) {
        free_slot(entry->slot);
        result = SIM_OUT_OF_MEMORY;
    }
    sim_table_unlock();
    return result;
}

static bool share(const struct sim_entry* name) {
    sim_table_lock();
    struct sim_table_entry* entry = find_entry(name);
    if (entry) entry->exported = 1;
    sim_table_unlock();
    return entry;
}

void sim_machine_share(const struct sim_entry* name) {
    share(name);
}

sim_result sim_machine_export(const struct sim_entry* name, int* fd) {
    char path[PATH_MAX];
    entry_path(name, path);
    if (!share(name)) return SIM_INVALID_HANDLE;  // before the descriptor exists: from now on only flock tells
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0 || flock(file, LOCK_SH)) {
        if (file >= 0) close(file);
        return SIM_OPERATING_SYSTEM;
    }
    *fd = file;
    return SIM_OK;
}

int sim_machine_open_file(const struct sim_entry* name) {
    char path[PATH_MAX];
    entry_path(name, path);
    return open(path, O_WRONLY | O_CLOEXEC);
}

static bool read_trailer(int fd, struct sim_trailer* trailer) {
    struct stat status, table;
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/machine", sim_machine_directory());
    if (fstat(fd, &status) || stat(path, &table)) return false;
    if (!S_ISREG(status.st_mode) || status.st_dev != table.st_dev || status.st_size <= SIM_PAGE) return false;
    off_t end = status.st_size - SIM_PAGE;
    return pread(fd, trailer, sizeof *trailer, end) == (ssize_t)sizeof *trailer && trailer->magic == SIM_TABLE_MAGIC &&
           trailer->size == (uint64_t)end;
}

sim_result sim_machine_import(int fd, struct sim_entry* name, unsigned* device, uint64_t* size, void** view) {
    struct sim_trailer trailer;
    if (!read_trailer(fd, &trailer) || flock(fd, LOCK_SH | LOCK_NB)) return SIM_INVALID_VALUE;
    sim_result result = SIM_INVALID_VALUE;
    sim_table_lock();
    struct sim_table_entry* entry = find_entry(&trailer.entry);
    if (entry && (*view = map_whole(fd, trailer.size))) {
        add_holder(entry, sim_own_key());
        *name = trailer.entry;
        *device = entry->device;
        *size = entry->size;
        result = SIM_OK;
    }
    sim_table_unlock();
    return result;
}

// Reading a hole through the mapping would fill it: a device mostly unused must stay cheap to save.
static void copy_extents(int file, char* to, const char* from, off_t size) {
    off_t at = 0, end;
    while (at < size && (at = lseek(file, at, SEEK_DATA)) >= 0 && at < size) {
        end = lseek(file, at, SEEK_HOLE);
        if (end < 0 || end > size) end = size;
        memcpy(to + at, from + at, (size_t)(end - at));
        at = end;
    }
}

void sim_machine_copy_contents(const struct sim_entry* entry, void* to, const void* view, uint64_t size) {
    char path[PATH_MAX];
    entry_path(entry, path);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) {  // no descriptor left: all of it, then
        memcpy(to, view, size);
        return;
    }
    copy_extents(file, to, view, (off_t)size);
    close(file);
}

void sim_machine_let_go(const struct sim_entry* name) {
    sim_table_lock();
    struct sim_table_entry* entry = find_entry(name);
    if (entry) {
        drop_holder(entry, sim_own_key());
        if (!entry->exported || nobody_holds(name->slot, entry)) free_slot(name->slot);
    }
    sim_table_unlock();
}

// ---- figures ------------------------------------------------------------------------------------------------------
uint64_t sim_machine_used(unsigned device) {
    sim_table_lock();
    reap(device);
    uint64_t used = sim_table->used[device];
    sim_table_unlock();
    return used;
}

static void count_holder(struct sim_holder* holders, size_t capacity, size_t* count, int pid, uint64_t bytes) {
    for (size_t i = 0; i < *count && i < capacity; i++) {
        if (holders[i].pid != pid) continue;
        holders[i].bytes += bytes;
        return;
    }
    if (*count < capacity) holders[*count] = (struct sim_holder){pid, bytes};
    ++*count;
}

// As an H200 with r580 counts: for the process that made it; an import counts for none, also when its maker let go.
size_t sim_machine_holders(unsigned device, struct sim_holder* holders, size_t capacity) {
    size_t count = 0;
    uint64_t last = 0;
    int maker = 0;
    sim_table_lock();
    reap(device);
    for (uint32_t slot = 0; slot < sim_table->high; slot++) {
        const struct sim_table_entry* entry = &sim_table->entries[slot];
        if (entry->state != SIM_ENTRY_LIVE || entry->device != device) continue;
        if (entry->maker != last) maker = entry->maker ? seen_as(entry->maker) : 0;
        last = entry->maker;
        if (maker) count_holder(holders, capacity, &count, maker, entry->size);
    }
    sim_table_unlock();
    return count;
}
