// SPDX-License-Identifier: Apache-2.0
//
// Plain allocations. Small ones share slabs of one granule, as in the driver; larger ones have their own memory.
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "context.h"
#include "memory.h"

enum { UNIT = 512, WORD = 64 };  // bytes a slab is divided into; units per word of its map

struct sim_slab {
    struct sim_slab* next;
    struct sim_context* context;
    struct sim_reservation* reservation;
    size_t units;
    size_t used;
    uint64_t taken[];  // one bit per unit
};

static struct sim_ranges allocations;
static uint64_t next_id = 1;

// ---- slabs --------------------------------------------------------------------------------------------------------
static bool taken(const struct sim_slab* slab, size_t unit) {
    return slab->taken[unit / WORD] >> unit % WORD & 1;
}

static void mark(struct sim_slab* slab, size_t first, size_t count, bool use) {
    for (size_t unit = first; unit < first + count; unit++) {
        if (use)
            slab->taken[unit / WORD] |= 1ull << unit % WORD;
        else
            slab->taken[unit / WORD] &= ~(1ull << unit % WORD);
    }
    slab->used = use ? slab->used + count : slab->used - count;
}

static bool find_gap(const struct sim_slab* slab, size_t count, size_t* first) {
    if (slab->units - slab->used < count) return false;
    size_t run = 0;
    for (size_t unit = 0; unit < slab->units; unit++) {
        run = taken(slab, unit) ? 0 : run + 1;
        if (run < count) continue;
        *first = unit + 1 - count;
        return true;
    }
    return false;
}

// Memory of `size` bytes at an address of its own, held by the mapping alone.
static sim_result back(struct sim_context* context, size_t size, bool cpu_visible, struct sim_reservation** where) {
    struct sim_physical* physical;
    sim_result result = sim_physical_create(context->device, size, &physical);
    if (result) return result;
    *where = sim_address_make_internal(size, cpu_visible);
    result = *where ? sim_mapping_add(*where, 0, physical) : SIM_OUT_OF_MEMORY;
    if (!result) ((struct sim_mapping*)(*where)->mappings.items[0])->peered = true;
    if (result && *where) sim_address_free_internal(*where);
    sim_physical_release_handle(physical);
    return result;
}

static sim_result make_slab(struct sim_context* context, struct sim_slab** slab) {
    size_t size = sim_machine_config()->granularity, units = size / UNIT;
    struct sim_slab* made = calloc(1, sizeof *made + (units + WORD - 1) / WORD * sizeof made->taken[0]);
    if (!made) return SIM_OUT_OF_MEMORY;
    sim_result result = back(context, size, false, &made->reservation);
    if (result) {
        free(made);
        return result;
    }
    made->context = context;
    made->units = units;
    made->next = context->slabs;
    context->slabs = *slab = made;
    return SIM_OK;
}

static void drop_slab(struct sim_slab* slab) {
    struct sim_slab** link = &slab->context->slabs;
    while (*link != slab) link = &(*link)->next;
    *link = slab->next;
    sim_address_free_internal(slab->reservation);
    free(slab);
}

static sim_result take_from_slab(struct sim_context* context, size_t size, struct sim_allocation* made) {
    size_t count = (size + UNIT - 1) / UNIT, first = 0;
    struct sim_slab* slab = context->slabs;
    while (slab && !find_gap(slab, count, &first)) slab = slab->next;
    if (!slab) {
        sim_result result = make_slab(context, &slab);
        if (result) return result;
        first = 0;
    }
    mark(slab, first, count, true);
    made->slab = slab;
    made->range.start = slab->reservation->range.start + first * UNIT;
    return SIM_OK;
}

static void return_to_slab(const struct sim_allocation* gone) {
    struct sim_slab* slab = gone->slab;
    size_t first = (gone->range.start - slab->reservation->range.start) / UNIT;
    mark(slab, first, (gone->range.size + UNIT - 1) / UNIT, false);
    if (!slab->used) drop_slab(slab);
}

// ---- allocations --------------------------------------------------------------------------------------------------
static sim_result find_memory(struct sim_context* context, size_t size, struct sim_allocation* made) {
    size_t granularity = sim_machine_config()->granularity;
    if (made->kind == SIM_ALLOCATION_DEVICE && size <= granularity / 2) return take_from_slab(context, size, made);
    if (size > SIZE_MAX - granularity) return SIM_OUT_OF_MEMORY;
    size_t rounded = (size + granularity - 1) & ~(granularity - 1);
    sim_result result = back(context, rounded, made->kind == SIM_ALLOCATION_MANAGED, &made->reservation);
    if (!result) made->range.start = made->reservation->range.start;
    return result;
}

static struct sim_allocation* make(struct sim_context* context, size_t size, enum sim_allocation_kind kind) {
    struct sim_allocation* made = calloc(1, sizeof *made);
    if (!made) return NULL;
    *made = (struct sim_allocation){
        .range = {0, size}, .kind = kind, .context = context, .device = context->device, .id = next_id++};
    return made;
}

static sim_result enter(struct sim_allocation* made, sim_result result, struct sim_allocation** out) {
    if (!result && !sim_ranges_insert(&allocations, made)) result = SIM_OUT_OF_MEMORY;
    if (result)
        free(made);
    else if (out)
        *out = made;
    return result;
}

sim_result sim_allocate(struct sim_context* context, size_t size, enum sim_allocation_kind kind,
                        struct sim_allocation** allocation) {
    struct sim_allocation* made = make(context, size, kind);
    if (!made) return SIM_OUT_OF_MEMORY;
    return enter(made, find_memory(context, size, made), allocation);
}

// ---- of another process -------------------------------------------------------------------------------------------
static struct sim_physical* physical_of(const struct sim_allocation* imported) {
    return ((struct sim_mapping*)imported->reservation->mappings.items[0])->physical;
}

static bool is_same(const struct sim_entry* one, const struct sim_entry* other) {
    return one->slot == other->slot && one->generation == other->generation;
}

// The one of this context at that offset; `any`: whichever has that physical memory.
static struct sim_allocation* find_opened(const struct sim_context* context, const struct sim_entry* entry,
                                          size_t offset, bool any) {
    for (size_t i = 0; i < allocations.count; i++) {
        struct sim_allocation* each = (struct sim_allocation*)allocations.items[i];
        if (each->kind != SIM_ALLOCATION_IMPORTED || !is_same(&physical_of(each)->entry, entry)) continue;
        if (any || (each->context == context && each->range.start - each->reservation->range.start == offset))
            return each;
    }
    return NULL;
}

static sim_result adopt(struct sim_context* context, struct sim_physical* physical, size_t offset, size_t size,
                        struct sim_allocation** allocation) {
    if (!sim_device_reaches(context->device, physical->device)) return SIM_PEER_UNSUPPORTED;
    struct sim_allocation* made = make(context, size, SIM_ALLOCATION_IMPORTED);
    if (!made) return SIM_OUT_OF_MEMORY;
    made->device = physical->device;
    if (made->device != context->device) context->peers |= 1u << made->device;  // the flag of the call asks for it
    made->opens = 1;
    made->reservation = sim_address_make_internal(physical->size, false);
    sim_result result = made->reservation ? sim_mapping_add(made->reservation, 0, physical) : SIM_OUT_OF_MEMORY;
    if (!result) {
        ((struct sim_mapping*)made->reservation->mappings.items[0])->peered = true;
        made->range.start = made->reservation->range.start + offset;
    }
    return enter(made, result, allocation);
}

sim_result sim_allocation_open(struct sim_context* context, const struct sim_entry* entry, size_t offset, size_t size,
                               struct sim_allocation** allocation) {
    if ((*allocation = find_opened(context, entry, offset, false))) {
        (*allocation)->opens++;
        return SIM_OK;
    }
    const struct sim_allocation* neighbour = find_opened(context, entry, offset, true);
    if (neighbour) return adopt(context, physical_of(neighbour), offset, size, allocation);
    struct sim_physical* physical;
    sim_result result = sim_physical_open(entry, &physical);
    if (result) return result;
    result = adopt(context, physical, offset, size, allocation);
    sim_physical_release_handle(physical);  // the mapping keeps it
    return result;
}

sim_result sim_allocation_close(uintptr_t address) {
    struct sim_allocation* found = sim_allocation_find(address);
    if (!found || found->kind != SIM_ALLOCATION_IMPORTED || found->range.start != address) return SIM_INVALID_VALUE;
    if (--found->opens) return SIM_OK;
    sim_result result = sim_context_synchronize(found->context);
    found = sim_allocation_find(address);  // the wait gave sim_lock away
    if (found && !found->opens) sim_allocation_free(found);
    return result;
}

sim_result sim_allocate_host(struct sim_context* context, size_t size, unsigned flags, struct sim_allocation** out) {
    struct sim_allocation* made = make(context, size, SIM_ALLOCATION_HOST);
    if (!made) return SIM_OUT_OF_MEMORY;
    made->flags = flags;
    void* memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    made->range.start = memory == MAP_FAILED ? 0 : (uintptr_t)memory;
    return enter(made, memory == MAP_FAILED ? SIM_OUT_OF_MEMORY : SIM_OK, out);
}

sim_result sim_register_host(struct sim_context* context, uintptr_t address, size_t size, unsigned flags) {
    if (sim_ranges_overlap(&allocations, address, size)) return SIM_HOST_ALREADY_REGISTERED;
    struct sim_allocation* made = make(context, size, SIM_ALLOCATION_REGISTERED);
    if (!made) return SIM_OUT_OF_MEMORY;
    made->flags = flags;
    made->range.start = address;
    return enter(made, SIM_OK, NULL);
}

struct sim_allocation* sim_allocation_find(uintptr_t address) {
    return sim_ranges_find(&allocations, address);
}

void sim_allocation_free(struct sim_allocation* gone) {
    sim_ranges_remove(&allocations, gone);
    if (gone->slab)
        return_to_slab(gone);
    else if (gone->reservation)
        sim_address_free_internal(gone->reservation);
    else if (gone->kind == SIM_ALLOCATION_HOST)
        munmap((void*)gone->range.start, gone->range.size);
    free(gone);
}

static bool in_use(unsigned device) {
    for (const struct sim_context* context = sim_contexts(); context; context = context->next)
        if (context->alive && context->device == device) return true;
    return false;
}

// Pool memory is no context's, and cuda.h has cuCtxDestroy leave it; that a device's reset ends it is not measured.
static bool ends_with(const struct sim_allocation* allocation, const struct sim_context* context) {
    if (allocation->kind != SIM_ALLOCATION_POOL) return allocation->context == context;
    return context->primary && allocation->device == context->device && !in_use(context->device);
}

void sim_allocations_free_of(const struct sim_context* context) {
    for (size_t i = allocations.count; i-- > 0;) {
        struct sim_allocation* allocation = (struct sim_allocation*)allocations.items[i];
        if (ends_with(allocation, context)) sim_allocation_free(allocation);
    }
}
