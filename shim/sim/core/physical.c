// SPDX-License-Identifier: Apache-2.0
//
// Physical allocations held by this process.
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "context.h"
#include "memory.h"

// Ids, not pointers: a program that releases twice must meet an error, not a stranger's handle.
static struct sim_ranges by_id;
static uint64_t next_id = 0x51a0001;
// How many objects of this process hold an entry: an import is an object of its own, letting go is counted per process.
static unsigned held[SIM_ENTRIES];

static atomic_ulong changes;

static void hold(struct sim_physical* physical, void* view) {
    physical->view = view;
    held[physical->entry.slot]++;
    atomic_fetch_add(&changes, 1);
}

static void let_go(struct sim_physical* physical) {
    munmap(physical->view, physical->size);
    physical->view = NULL;
    if (--held[physical->entry.slot] == 0) sim_machine_let_go(&physical->entry);
    atomic_fetch_add(&changes, 1);
}

unsigned long sim_physical_changes(void) {
    return atomic_load(&changes);
}

// What came and is no object of this process.
static void give_up(const struct sim_entry* entry, uint64_t size, void* view) {
    munmap(view, size);
    if (!held[entry->slot]) sim_machine_let_go(entry);
}

static struct sim_physical* add(unsigned device, uint64_t size, const struct sim_entry* entry, void* view) {
    struct sim_physical* physical = calloc(1, sizeof *physical);
    if (physical) {
        *physical = (struct sim_physical){
            .id_range = {next_id, 1}, .entry = *entry, .size = size, .device = device, .handles = 1};
        if (sim_ranges_insert(&by_id, physical)) {
            next_id++;
            hold(physical, view);
            return physical;
        }
    }
    free(physical);
    give_up(entry, size, view);
    return NULL;
}

sim_result sim_physical_create(unsigned device, uint64_t size, struct sim_physical** physical) {
    struct sim_entry entry;
    void* view;
    sim_result result = sim_machine_create(sim_device_real(device), size, &entry, &view);
    if (result) return result;
    *physical = add(device, size, &entry, view);
    return *physical ? SIM_OK : SIM_OUT_OF_MEMORY;
}

// A second import is the same handle once more; that of one's own memory is another one. Both seen on r580.
static struct sim_physical* find_imported(const struct sim_entry* entry) {
    for (size_t i = 0; i < by_id.count; i++) {
        struct sim_physical* each = (struct sim_physical*)by_id.items[i];
        if (each->imported && each->entry.slot == entry->slot && each->entry.generation == entry->generation)
            return each;
    }
    return NULL;
}

sim_result sim_physical_import(int fd, struct sim_physical** physical) {
    struct sim_entry entry;
    unsigned real;
    uint64_t size;
    void* view;
    sim_result result = sim_machine_import(fd, &entry, &real, &size, &view);
    if (result) return result;
    // Seen on an H200 with r580.159, also where a restore had brought the process to that device.
    if (!sim_device_was_shown(real)) {
        give_up(&entry, size, view);
        return SIM_NOT_INITIALIZED;
    }
    if ((*physical = find_imported(&entry))) {
        give_up(&entry, size, view);
        (*physical)->handles++;
        return SIM_OK;
    }
    *physical = add(sim_device_ordinal(real), size, &entry, view);
    if (!*physical) return SIM_OUT_OF_MEMORY;
    (*physical)->imported = true;
    return SIM_OK;
}

// What came by import cannot leave again, not even where its maker still has it: seen on an H200 with r580.159, at the
// second checkpoint of a process whose memory a first restore had imported.
sim_result sim_physical_export(struct sim_physical* physical, int* fd) {
    if (sim_machine_has_quirk(SIM_QUIRK_NOEXPORT)) return SIM_NOT_SUPPORTED;
    if (!physical->exportable) return SIM_INVALID_VALUE;
    sim_result result = sim_machine_export(&physical->entry, fd);
    if (!result) physical->exported = true;
    return result;
}

sim_result sim_physical_publish(struct sim_physical* physical) {
    int fd;
    sim_result result = sim_machine_export(&physical->entry, &fd);
    if (result) return result;
    physical->exported = true;
    close(fd);
    return SIM_OK;
}

sim_result sim_physical_open(const struct sim_entry* entry, struct sim_physical** physical) {
    int fd;
    if (held[entry->slot] || sim_machine_export(entry, &fd)) return SIM_INVALID_CONTEXT;
    sim_result result = sim_physical_import(fd, physical);
    close(fd);
    return result;
}

struct sim_physical* sim_physical_find(uint64_t id) {
    struct sim_physical* physical = sim_ranges_find(&by_id, (uintptr_t)id);
    return physical && physical->handles ? physical : NULL;
}

void sim_physical_drop_if_unused(struct sim_physical* physical) {
    if (physical->handles || physical->mappings) return;
    sim_ranges_remove(&by_id, physical);
    if (physical->view) let_go(physical);
    sim_physical_forget_saved(physical);
    free(physical);
}

void sim_physical_release_handle(struct sim_physical* physical) {
    physical->handles--;
    sim_physical_drop_if_unused(physical);
}

struct sim_ranges* sim_physical_all(void) {
    return &by_id;
}

sim_result sim_physical_save(struct sim_physical* physical) {
    void* saved =
        mmap(NULL, physical->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (saved == MAP_FAILED) return SIM_OUT_OF_MEMORY;
    sim_machine_copy_contents(&physical->entry, saved, physical->view, physical->size);
    physical->saved = saved;
    sim_address_detach(physical);
    let_go(physical);
    return SIM_OK;
}

// New device memory is zero, and a page that stays untouched costs the host nothing.
static void copy_written(char* to, const char* from, size_t size) {
    static const char zero[SIM_PAGE];
    for (size_t at = 0; at < size; at += SIM_PAGE)
        if (memcmp(from + at, zero, SIM_PAGE)) memcpy(to + at, from + at, SIM_PAGE);
}

sim_result sim_physical_recreate(struct sim_physical* physical) {
    void* view;
    unsigned real = sim_device_real(physical->device);
    sim_result result = sim_machine_create(real, physical->size, &physical->entry, &view);
    if (result) return result;
    copy_written(view, physical->saved, physical->size);
    hold(physical, view);
    return sim_address_attach(physical);
}

void sim_physical_forget_saved(struct sim_physical* physical) {
    if (physical->saved) munmap(physical->saved, physical->size);
    physical->saved = NULL;
}
