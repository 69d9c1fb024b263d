// SPDX-License-Identifier: Apache-2.0
//
// What every part of the simulated driver shares: results, limits, the process-wide lock, sorted ranges.
//
// Locks, outermost first: sim_lock (everything of this process) > the machine's mutex (shared by all processes).
// Functions named *_locked want sim_lock held. Device threads copy and compute without it.
#ifndef GCR_SIM_BASE_H
#define GCR_SIM_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SIM_MAX_DEVICES = 16, SIM_PAGE = 4096 };

typedef enum sim_result {
    SIM_OK = 0,
    SIM_INVALID_VALUE,
    SIM_OUT_OF_MEMORY,
    SIM_NOT_INITIALIZED,
    SIM_DEINITIALIZED,
    SIM_NO_DEVICE,
    SIM_INVALID_DEVICE,
    SIM_INVALID_IMAGE,
    SIM_INVALID_CONTEXT,
    SIM_ALREADY_MAPPED,
    SIM_INVALID_HANDLE,
    SIM_ILLEGAL_STATE,
    SIM_NOT_FOUND,
    SIM_NOT_READY,
    SIM_ILLEGAL_ADDRESS,
    SIM_PEER_ALREADY_ENABLED,
    SIM_PEER_NOT_ENABLED,
    SIM_PEER_UNSUPPORTED,
    SIM_CONTEXT_DESTROYED,
    SIM_HOST_ALREADY_REGISTERED,
    SIM_HOST_NOT_REGISTERED,
    SIM_NOT_SUPPORTED,
    SIM_NOT_PERMITTED,
    SIM_OPERATING_SYSTEM,
    SIM_FILE_NOT_FOUND,
    SIM_CAPTURE_UNSUPPORTED,
    SIM_CAPTURE_INVALIDATED,
    SIM_CAPTURE_MERGE,
    SIM_CAPTURE_UNMATCHED,
    SIM_CAPTURE_UNJOINED,
    SIM_CAPTURE_ISOLATION,
    SIM_CAPTURE_IMPLICIT,
    SIM_CAPTURED_EVENT,
    SIM_CAPTURE_WRONG_THREAD,
    SIM_RESULT_COUNT,
    SIM_VENDOR_BASE = 0x10000,  // an injected fault: the vendor's own number is added to this
} sim_result;

void sim_lock(void);
void sim_unlock(void);

// Sleeps until some work completed or some state changed; releases sim_lock meanwhile. False: `deadline_ns` passed.
enum { SIM_FOREVER = 0 };
bool sim_wait_progress_locked(uint64_t deadline_ns);
void sim_progress_locked(void);

void sim_wait_locked(void* condition);  // a pthread_cond_t

uint64_t sim_now_ns(void);
void sim_sleep_ms(unsigned milliseconds);

// ---- sorted, disjoint ranges of addresses -----------------------------------------------------------------------
struct sim_range {
    uintptr_t start;
    size_t size;
};

struct sim_ranges {
    struct sim_range** items;  // ascending by start
    size_t count;
    size_t capacity;
};

size_t sim_ranges_index(const struct sim_ranges* ranges, uintptr_t address);  // first whose end is above `address`
void* sim_ranges_find(const struct sim_ranges* ranges, uintptr_t address);    // the one that contains it, or null
bool sim_ranges_overlap(const struct sim_ranges* ranges, uintptr_t start, size_t size);
bool sim_ranges_insert(struct sim_ranges* ranges, void* item);  // false: no memory
void sim_ranges_remove(struct sim_ranges* ranges, const void* item);

// ---- live objects: what a handle of the vendor's API may point to -------------------------------------------------
enum sim_kind {
    SIM_NO_OBJECT = 0,
    SIM_CONTEXT,
    SIM_STREAM,
    SIM_EVENT,
    SIM_MODULE,
    SIM_FUNCTION,
    SIM_GRAPH,
    SIM_GRAPH_EXEC,
    SIM_POOL,
};

bool sim_object_add_locked(const void* object, enum sim_kind kind);
void sim_object_remove_locked(const void* object);
bool sim_object_is_locked(const void* object, enum sim_kind kind);

#endif
