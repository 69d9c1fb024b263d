// SPDX-License-Identifier: Apache-2.0
//
// The machine's shared table, as it lies in the file. Private to machine.c, entries.c and signals.c.
#ifndef GCR_SIM_TABLE_H
#define GCR_SIM_TABLE_H

#include <pthread.h>

#include "machine.h"

enum { SIM_HOLDERS = 6, SIM_SIGNALS = 16384, SIM_NO_ENTRY = 0xffffffff };
#define SIM_TABLE_MAGIC 0x364d4953524347ull  // "GCRSIM6"

enum sim_entry_state { SIM_ENTRY_FREE = 0, SIM_ENTRY_LIVE = 1 };

struct sim_table_entry {
    uint64_t generation;  // bumped at each reuse of the slot
    uint64_t size;
    uint32_t device;
    uint32_t state;
    uint32_t exported;  // a descriptor was made: others may hold it, only flock can tell
    uint32_t next_free;
    uint64_t holders[SIM_HOLDERS];  // keys, see entries.c; 0: empty
    uint64_t maker;                 // the process that it counts for: its maker, until that one lets go; else 0
};

struct sim_table_signal {
    uint64_t generation;  // 0: free
    uint64_t maker;       // keys
    uint64_t recorder;    // of the newest record
    uint64_t recorded;
    uint64_t completed;
    uint32_t references;
    uint32_t reserved;
};

struct sim_table {
    uint64_t magic;
    struct sim_config config;
    pthread_mutex_t mutex;  // robust, shared between processes, as are those below
    pthread_mutex_t files;    // of one writer of what the kernel shows
    pthread_mutex_t watcher;  // of the process that brings it up to date for all
    uint64_t used[SIM_MAX_DEVICES];
    uint32_t first_free;
    uint32_t high;  // slots at or above were never used
    uint64_t next_generation;
    struct sim_table_entry entries[SIM_ENTRIES];
    uint32_t next_signal;  // where the search for a free one begins
    struct sim_table_signal signals[SIM_SIGNALS];
};

struct sim_trailer {  // in the page after the allocation's bytes
    uint64_t magic;
    struct sim_entry entry;
    uint64_t size;
};

extern struct sim_table* sim_table;

// Keys name processes: entries.c.
uint64_t sim_own_key(void);
bool sim_is_own_key(uint64_t key);
bool sim_is_gone(uint64_t key);

void sim_table_lock(void);
void sim_table_unlock(void);

#endif
