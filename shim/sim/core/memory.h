// SPDX-License-Identifier: Apache-2.0
//
// Device memory as one process sees it: physical allocations, reserved addresses, mappings, allocations.
//
// A device address is a CPU address that the CPU cannot touch: PROT_NONE, as on hardware. Device threads work on an
// alias of the same size elsewhere, and only through sim_view_take_locked, which checks the access of that device.
// All functions here want sim_lock held unless said otherwise.
#ifndef GCR_SIM_MEMORY_H
#define GCR_SIM_MEMORY_H

#include "machine.h"

struct sim_context;
struct sim_stream;

enum sim_access { SIM_ACCESS_NONE = 0, SIM_ACCESS_READ = 1, SIM_ACCESS_WRITE = 3 };

// ---- physical allocations -------------------------------------------------------------------------------------
struct sim_physical {
    struct sim_range id_range;  // .start is the id the front hands out
    struct sim_entry entry;
    uint64_t size;
    unsigned device;    // ordinal in this process
    char* view;         // the whole allocation; null while checkpointed
    void* saved;        // its bytes, while checkpointed
    unsigned handles;   // references by the program
    unsigned mappings;
    struct sim_mapping* first_mapping;
    bool exportable;    // a shareable handle type was asked for
    bool exported;
    bool imported;
    bool doomed;        // of a kind with which a checkpointed process is never restored
    uint8_t properties[32];  // as asked for, in the front's own layout
};

sim_result sim_physical_create(unsigned device, uint64_t size, struct sim_physical** physical);
sim_result sim_physical_import(int fd, struct sim_physical** physical);  // takes a handle reference
sim_result sim_physical_export(struct sim_physical* physical, int* fd);
sim_result sim_physical_publish(struct sim_physical* physical);  // may be opened by name from now on
sim_result sim_physical_open(const struct sim_entry* entry, struct sim_physical** physical);  // by name
struct sim_physical* sim_physical_find(uint64_t id);  // null: not a handle of the program
void sim_physical_release_handle(struct sim_physical* physical);
void sim_physical_drop_if_unused(struct sim_physical* physical);
struct sim_ranges* sim_physical_all(void);
unsigned long sim_physical_changes(void);  // how often this process took or gave device memory; needs no sim_lock
sim_result sim_physical_save(struct sim_physical* physical);     // contents to host memory, device memory let go
sim_result sim_physical_recreate(struct sim_physical* physical);  // device memory again, contents back
void sim_physical_forget_saved(struct sim_physical* physical);

// ---- addresses --------------------------------------------------------------------------------------------------
struct sim_reservation {
    struct sim_range range;
    char* alias;        // where device threads see it; equal to range.start for memory the CPU may touch
    bool cpu_visible;   // managed memory
    bool internal;      // made by the driver itself for an allocation; the program cannot free or map it
    unsigned users;     // device threads working on the alias right now
    bool freed;         // the last user takes it down
    struct sim_ranges mappings;
    struct sim_kept* kept;  // SIM_QUIRK_LEAK_HARD: what was ever mapped here
};

struct sim_mapping {
    struct sim_range range;
    struct sim_reservation* reservation;
    struct sim_physical* physical;
    size_t offset;
    struct sim_mapping* next_of_physical;
    bool peered;  // plain allocation: other devices reach it through peer access
    uint8_t access[SIM_MAX_DEVICES];
};

sim_result sim_address_reserve(size_t size, size_t alignment, uintptr_t hint, struct sim_reservation** reservation);
sim_result sim_address_free(uintptr_t address, size_t size);
sim_result sim_address_map(uintptr_t address, size_t size, size_t offset, struct sim_physical* physical);
sim_result sim_address_unmap(uintptr_t address, size_t size);
sim_result sim_address_set_access(uintptr_t address, size_t size, unsigned device, enum sim_access access);
bool sim_address_covered(uintptr_t address, size_t size);  // by whole mappings, none cut, no hole
struct sim_reservation* sim_reservation_find(uintptr_t address);
struct sim_mapping* sim_mapping_find(uintptr_t address);
void sim_address_detach(struct sim_physical* physical);        // aliases down: the physical allocation goes away
sim_result sim_address_attach(struct sim_physical* physical);  // and up again
struct sim_reservation* sim_address_make_internal(size_t size, bool cpu_visible);
void sim_address_free_internal(struct sim_reservation* reservation);
sim_result sim_mapping_add(struct sim_reservation* where, size_t offset, struct sim_physical* physical);

// What a device thread may touch. `view` is null for an illegal access. Host addresses view as themselves.
struct sim_view {
    char* memory;
    size_t size;  // contiguous bytes from `memory` on that were checked
    struct sim_reservation* reservation;
    struct sim_touch* touch;
};
struct sim_view sim_view_take_locked(const struct sim_context* context, uintptr_t address, size_t size, bool write);
void sim_view_give_back_locked(struct sim_view* view);
bool sim_address_allows(const struct sim_context* context, uintptr_t address, size_t size, bool write);

// ---- allocations --------------------------------------------------------------------------------------------------
enum sim_allocation_kind {
    SIM_ALLOCATION_DEVICE,
    SIM_ALLOCATION_POOL,
    SIM_ALLOCATION_MANAGED,
    SIM_ALLOCATION_IMPORTED,  // opened from another process by the legacy IPC calls
    SIM_ALLOCATION_HOST,
    SIM_ALLOCATION_REGISTERED,
};

struct sim_allocation {
    struct sim_range range;  // the bytes asked for
    enum sim_allocation_kind kind;
    struct sim_context* context;  // its owner; freed with it, but for what came from a pool
    unsigned device;
    unsigned flags;  // the front's flags, for host memory
    uint64_t id;     // never reused
    struct sim_reservation* reservation;
    struct sim_slab* slab;
    struct sim_mapping* mapping;
    void* pool;      // the front's, of what came from one
    unsigned opens;  // imported ones: how often it was opened and not closed
};

sim_result sim_allocate(struct sim_context* context, size_t size, enum sim_allocation_kind kind,
                        struct sim_allocation** allocation);
sim_result sim_allocate_host(struct sim_context* context, size_t size, unsigned flags, struct sim_allocation** out);
sim_result sim_register_host(struct sim_context* context, uintptr_t address, size_t size, unsigned flags);
// By the legacy interprocess calls. What this context has open already is counted, at the same address; closed as often,
// it goes, once the context's work is done.
sim_result sim_allocation_open(struct sim_context* context, const struct sim_entry* entry, size_t offset, size_t size,
                               struct sim_allocation** allocation);
sim_result sim_allocation_close(uintptr_t address);
struct sim_allocation* sim_allocation_find(uintptr_t address);
void sim_allocation_free(struct sim_allocation* allocation);
void sim_allocations_free_of(const struct sim_context* context);

#endif
