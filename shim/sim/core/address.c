// SPDX-License-Identifier: Apache-2.0
//
// Reserved addresses, what is mapped there, and which device may touch it.
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "context.h"
#include "memory.h"
#include "touches.h"

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif

enum { EMPTY = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE };

static struct sim_ranges reservations;

// ---- address space ------------------------------------------------------------------------------------------------
static void* claim_anywhere(size_t size, size_t alignment) {
    char* base = mmap(NULL, size + alignment, PROT_NONE, EMPTY, -1, 0);
    if (base == MAP_FAILED) return NULL;
    char* aligned = (char*)(((uintptr_t)base + alignment - 1) & ~(uintptr_t)(alignment - 1));
    if (aligned > base) munmap(base, (size_t)(aligned - base));
    munmap(aligned + size, alignment - (size_t)(aligned - base));
    return aligned;
}

// The hole just asked for may be the first one found: it is held while another is looked for.
static void* claim_elsewhere(size_t size, size_t alignment, uintptr_t hint) {
    void* first = claim_anywhere(size, alignment);
    if (!first || (uintptr_t)first != hint) return first;
    void* second = claim_anywhere(size, alignment);
    munmap(first, size);
    return second;
}

// As the driver: a hint that is not free is not an error, another address is given.
static void* claim(size_t size, size_t alignment, uintptr_t hint) {
    if (sim_machine_has_quirk(SIM_QUIRK_ELSEWHERE)) return claim_elsewhere(size, alignment, hint);
    if (hint && hint % alignment == 0) {
        void* there = mmap((void*)hint, size, PROT_NONE, EMPTY | MAP_FIXED_NOREPLACE, -1, 0);
        if (there == (void*)hint) return there;
        if (there != MAP_FAILED) munmap(there, size);
    }
    return claim_anywhere(size, alignment);
}

static struct sim_reservation* reserve(size_t size, size_t alignment, uintptr_t hint, bool cpu_visible) {
    struct sim_reservation* made = calloc(1, sizeof *made);
    if (!made) return NULL;
    void* address = claim(size, alignment, hint);
    made->range = (struct sim_range){(uintptr_t)address, size};
    made->cpu_visible = cpu_visible;
    made->alias = cpu_visible ? address : claim_anywhere(size, SIM_PAGE);
    if (address && made->alias && sim_ranges_insert(&reservations, made)) return made;
    if (made->alias && !cpu_visible) munmap(made->alias, size);
    if (address) munmap(address, size);
    free(made);
    return NULL;
}

// SIM_QUIRK_LEAK_HARD: what was ever mapped here stays referenced where no mapping can replace it.
struct sim_kept {
    void* memory;
    size_t size;
    struct sim_kept* next;
};

static bool keep(struct sim_reservation* where, char* from, size_t size) {
    struct sim_kept* made = calloc(1, sizeof *made);
    void* memory = made ? mremap(from, 0, size, MREMAP_MAYMOVE) : MAP_FAILED;
    if (memory == MAP_FAILED || mprotect(memory, size, PROT_NONE)) {
        if (memory != MAP_FAILED) munmap(memory, size);
        free(made);
        return false;
    }
    *made = (struct sim_kept){memory, size, where->kept};
    where->kept = made;
    return true;
}

static void forget_kept(struct sim_reservation* where) {
    for (struct sim_kept* gone; (gone = where->kept);) {
        where->kept = gone->next;
        munmap(gone->memory, gone->size);
        free(gone);
    }
}

static void take_down(struct sim_reservation* gone) {
    if (!gone->cpu_visible) munmap(gone->alias, gone->range.size);
    free(gone->mappings.items);
    free(gone);
}

// The address is free at once; the alias stays until the last device thread has left it.
static void unreserve(struct sim_reservation* gone) {
    sim_ranges_remove(&reservations, gone);
    munmap((void*)gone->range.start, gone->range.size);
    forget_kept(gone);
    gone->freed = true;
    if (!gone->users) take_down(gone);
}

sim_result sim_address_reserve(size_t size, size_t alignment, uintptr_t hint, struct sim_reservation** reservation) {
    size_t granularity = sim_machine_config()->granularity;
    if (!size || size % granularity || hint % granularity || (alignment & (alignment - 1))) return SIM_INVALID_VALUE;
    *reservation = reserve(size, alignment < granularity ? granularity : alignment, hint, false);
    return *reservation ? SIM_OK : SIM_OUT_OF_MEMORY;
}

struct sim_reservation* sim_address_make_internal(size_t size, bool cpu_visible) {
    struct sim_reservation* made = reserve(size, sim_machine_config()->granularity, 0, cpu_visible);
    if (made) made->internal = true;
    return made;
}

struct sim_reservation* sim_reservation_find(uintptr_t address) {
    return sim_ranges_find(&reservations, address);
}

sim_result sim_address_free(uintptr_t address, size_t size) {
    struct sim_reservation* found = sim_reservation_find(address);
    if (!found || found->internal || found->range.start != address || found->range.size != size)
        return SIM_INVALID_VALUE;
    if (found->mappings.count) return SIM_INVALID_VALUE;
    unreserve(found);
    return SIM_OK;
}

// ---- mappings -----------------------------------------------------------------------------------------------------
static char* alias_of(const struct sim_mapping* mapping) {
    return mapping->reservation->alias + (mapping->range.start - mapping->reservation->range.start);
}

// old_size 0 on a shared mapping makes a second mapping of the same open file description: no descriptor needed.
static bool attach(const struct sim_mapping* mapping) {
    char* from = mapping->physical->view + mapping->offset;
    return mremap(from, 0, mapping->range.size, MREMAP_MAYMOVE | MREMAP_FIXED, alias_of(mapping)) != MAP_FAILED;
}

// SIM_QUIRK_LEAK: the file is mapped at the device address as well, and unmapping leaves it there, so that the kernel
// counts it as held until the address is freed or something else is mapped over it.
static bool leave_behind(const struct sim_mapping* mapping) {
    bool hard = sim_machine_has_quirk(SIM_QUIRK_LEAK_HARD);
    if (!(hard || sim_machine_has_quirk(SIM_QUIRK_LEAK)) || mapping->reservation->internal) return true;
    char* from = mapping->physical->view + mapping->offset;
    void* at = (void*)mapping->range.start;
    sim_machine_share(&mapping->physical->entry);
    if (hard) return keep(mapping->reservation, from, mapping->range.size);
    return mremap(from, 0, mapping->range.size, MREMAP_MAYMOVE | MREMAP_FIXED, at) != MAP_FAILED &&
           mprotect(at, mapping->range.size, PROT_NONE) == 0;
}

// Kernels in flight may still write there: on hardware that is their context's fault, not a crash of this process.
static void detach(const struct sim_mapping* mapping) {
    sim_touch_unmapped_locked(mapping->range.start, mapping->range.size);
    int protection = mapping->reservation->users ? PROT_READ | PROT_WRITE : PROT_NONE;
    mmap(alias_of(mapping), mapping->range.size, protection, EMPTY | MAP_FIXED, -1, 0);
}

sim_result sim_mapping_add(struct sim_reservation* where, size_t offset, struct sim_physical* physical) {
    struct sim_mapping* made = calloc(1, sizeof *made);
    if (!made) return SIM_OUT_OF_MEMORY;
    made->range = (struct sim_range){where->range.start + offset, physical->size};
    made->reservation = where;
    made->physical = physical;
    if (!attach(made) || !leave_behind(made) || !sim_ranges_insert(&where->mappings, made)) {
        free(made);
        return SIM_OUT_OF_MEMORY;
    }
    made->next_of_physical = physical->first_mapping;
    physical->first_mapping = made;
    physical->mappings++;
    return SIM_OK;
}

static void unlink_mapping(struct sim_physical* physical, const struct sim_mapping* gone) {
    struct sim_mapping** link = &physical->first_mapping;
    while (*link != gone) link = &(*link)->next_of_physical;
    *link = gone->next_of_physical;
    physical->mappings--;
}

static void remove_mapping(struct sim_mapping* gone) {
    detach(gone);
    sim_ranges_remove(&gone->reservation->mappings, gone);
    struct sim_physical* physical = gone->physical;
    unlink_mapping(physical, gone);
    free(gone);
    sim_physical_drop_if_unused(physical);
}

void sim_address_free_internal(struct sim_reservation* reservation) {
    while (reservation->mappings.count) remove_mapping((struct sim_mapping*)reservation->mappings.items[0]);
    unreserve(reservation);
}

static bool holds(const struct sim_range* range, uintptr_t address, size_t size) {
    return size <= range->size && address - range->start <= range->size - size;
}

sim_result sim_address_map(uintptr_t address, size_t size, size_t offset, struct sim_physical* physical) {
    size_t granularity = sim_machine_config()->granularity;
    struct sim_reservation* where = sim_reservation_find(address);
    if (!where || where->internal || !size || address % granularity) return SIM_INVALID_VALUE;
    if (offset || size != physical->size) return SIM_NOT_SUPPORTED;
    if (!holds(&where->range, address, size) || sim_ranges_overlap(&where->mappings, address, size))
        return SIM_INVALID_VALUE;
    return sim_mapping_add(where, address - where->range.start, physical);
}

struct sim_mapping* sim_mapping_find(uintptr_t address) {
    struct sim_reservation* where = sim_reservation_find(address);
    return where ? sim_ranges_find(&where->mappings, address) : NULL;
}

// Mappings that fill [address, address + size) exactly, none cut. False otherwise.
static bool whole_mappings(struct sim_reservation* where, uintptr_t address, size_t size, size_t* first,
                           size_t* count) {
    uintptr_t at = address, end = address + size;
    *first = sim_ranges_index(&where->mappings, address);
    size_t i = *first;
    for (; i < where->mappings.count && at < end; i++) {
        const struct sim_range* item = where->mappings.items[i];
        if (item->start != at) return false;
        at += item->size;
    }
    *count = i - *first;
    return size && at == end;
}

bool sim_address_covered(uintptr_t address, size_t size) {
    struct sim_reservation* where = sim_reservation_find(address);
    size_t first, count;
    return where && whole_mappings(where, address, size, &first, &count);
}

// Holes are no error to the driver, cut mappings are.
sim_result sim_address_unmap(uintptr_t address, size_t size) {
    struct sim_reservation* where = sim_reservation_find(address);
    if (!where || where->internal || !size || !holds(&where->range, address, size)) return SIM_INVALID_VALUE;
    size_t first = sim_ranges_index(&where->mappings, address), count = 0;
    for (; first + count < where->mappings.count; count++) {
        const struct sim_range* item = where->mappings.items[first + count];
        if (item->start >= address + size) break;
        if (item->start < address || item->start + item->size > address + size) return SIM_INVALID_VALUE;
    }
    while (count--) remove_mapping((struct sim_mapping*)where->mappings.items[first]);
    return SIM_OK;
}

sim_result sim_address_set_access(uintptr_t address, size_t size, unsigned device, enum sim_access access) {
    struct sim_reservation* where = sim_reservation_find(address);
    size_t first, count;
    if (!where || where->internal || !whole_mappings(where, address, size, &first, &count)) return SIM_INVALID_VALUE;
    for (size_t i = first; access && i < first + count; i++) {
        const struct sim_mapping* mapping = (const struct sim_mapping*)where->mappings.items[i];
        if (!sim_device_reaches(device, mapping->physical->device)) return SIM_INVALID_DEVICE;
    }
    for (size_t i = first; i < first + count; i++)
        ((struct sim_mapping*)where->mappings.items[i])->access[device] = (uint8_t)access;
    return SIM_OK;
}

void sim_address_detach(struct sim_physical* physical) {
    for (struct sim_mapping* m = physical->first_mapping; m; m = m->next_of_physical) detach(m);
}

sim_result sim_address_attach(struct sim_physical* physical) {
    for (struct sim_mapping* m = physical->first_mapping; m; m = m->next_of_physical)
        if (!attach(m)) return SIM_OUT_OF_MEMORY;
    return SIM_OK;
}

// ---- device accesses ----------------------------------------------------------------------------------------------
static bool allowed(const struct sim_context* context, const struct sim_mapping* mapping, bool write) {
    unsigned device = context->device;
    if (mapping->peered) {
        unsigned owner = mapping->physical->device;
        return owner == device || (context->peers >> owner & 1);
    }
    return mapping->access[device] >= (write ? SIM_ACCESS_WRITE : SIM_ACCESS_READ);
}

static size_t checked_bytes(const struct sim_context* context, const struct sim_reservation* where, uintptr_t address,
                            size_t size, bool write) {
    uintptr_t at = address, end = address + size;
    for (size_t i = sim_ranges_index(&where->mappings, at); i < where->mappings.count && at < end; i++) {
        const struct sim_mapping* mapping = (const struct sim_mapping*)where->mappings.items[i];
        if (mapping->range.start > at || !allowed(context, mapping, write)) break;
        at = mapping->range.start + mapping->range.size;
    }
    return at < end ? at - address : size;
}

bool sim_address_allows(const struct sim_context* context, uintptr_t address, size_t size, bool write) {
    const struct sim_reservation* where = sim_reservation_find(address);
    return !where || checked_bytes(context, where, address, size, write) == size;
}

struct sim_view sim_view_take_locked(const struct sim_context* context, uintptr_t address, size_t size, bool write) {
    struct sim_reservation* where = sim_reservation_find(address);
    if (!where) return (struct sim_view){(char*)address, size, NULL, NULL};
    if (checked_bytes(context, where, address, size, write) < size) return (struct sim_view){0};
    where->users++;
    struct sim_touch* touch = sim_touch_begin_locked(address, size);
    return (struct sim_view){where->alias + (address - where->range.start), size, where, touch};
}

void sim_view_give_back_locked(struct sim_view* view) {
    struct sim_reservation* where = view->reservation;
    view->reservation = NULL;
    sim_touch_end_locked(view->touch);
    view->touch = NULL;
    if (where && --where->users == 0 && where->freed) take_down(where);
}
