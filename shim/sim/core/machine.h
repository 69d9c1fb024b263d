// SPDX-License-Identifier: Apache-2.0
//
// The simulated machine: a directory that all processes share. Nothing here knows of contexts or addresses.
//
//   <state>/machine      table of devices and physical allocations, mapped by everyone, guarded by a robust mutex
//   <state>/physical/    one file per physical allocation
//   <state>/faults       optional, see fault.h
//
// A physical allocation lives as long as some process holds its open file description: through a descriptor, a
// mapping, or a message in flight. Each holder's description carries flock(LOCK_SH); when LOCK_EX can be taken by a
// fresh open, no holder is left, dead processes included, and the entry is reaped. The kernel counts, we only ask.
#ifndef GCR_SIM_MACHINE_H
#define GCR_SIM_MACHINE_H

#include "base.h"

enum { SIM_ENTRIES = 65536 };  // physical allocations a machine can hold

// What some real drivers do wrong, for a whole machine: GCR_SIM_QUIRKS. The README says what each models.
enum sim_quirk {
    SIM_QUIRK_LEAK = 1,       // unmapped and released memory stays in use while its address stays reserved
    SIM_QUIRK_NOEXPORT = 2,   // physical memory has no descriptor
    SIM_QUIRK_ELSEWHERE = 4,  // a reservation is never made at the address hinted at
    SIM_QUIRK_LEAK_HARD = 8,  // as LEAK, and nothing mapped there ends it
    // No faults, but what some machines have. Only that gcr refuses it is tested with these.
    SIM_QUIRK_FABRIC = 16,     // memory can be made for the fabric: there is an IMEX channel
    SIM_QUIRK_HOST_NUMA = 32,  // physical memory on the host
    SIM_QUIRK_MULTICAST = 64,  // multicast objects
};

struct sim_config {
    uint32_t devices;
    uint32_t control_ms;     // how long a control checkpoint or restore takes
    uint64_t memory;         // bytes per device
    uint64_t granularity;    // bytes
    uint64_t context_bytes;  // VRAM cost of a context
    uint64_t copy_bps;       // copy speed limit, bytes per second; 0: none
    uint32_t quirks;         // of enum sim_quirk
    uint32_t hip_version;    // as hipRuntimeGetVersion says it
    uint32_t number;         // of the machine, below 256: a part of its devices' UUIDs
    uint32_t queue;          // operations that a stream takes before a call waits
    uint32_t apart[SIM_MAX_DEVICES];  // bit p of device d: neither reaches the memory of the other
};

struct sim_entry {  // names one physical allocation of the machine, or one signal
    uint32_t slot;
    uint64_t generation;
};

struct sim_holder {
    int pid;
    uint64_t bytes;
};

sim_result sim_machine_open(void);  // idempotent; creates the machine at first use
const struct sim_config* sim_machine_config(void);
bool sim_machine_has_quirk(enum sim_quirk quirk);
bool sim_machine_reaches(unsigned device, unsigned peer);  // the peer's memory, or its own
const char* sim_machine_directory(void);
void sim_machine_uuid(unsigned device, uint8_t uuid[16]);
void sim_machine_uuid_of(unsigned machine, unsigned device, uint8_t uuid[16]);  // of another one
uint64_t sim_machine_unique_id(unsigned device);  // for vendors that know a device by a number

// A new physical allocation: `view` is the whole of it, readable and writable, and holds it until munmap.
sim_result sim_machine_create(unsigned device, uint64_t size, struct sim_entry* entry, void** view);
// A descriptor that keeps the allocation alive wherever it travels.
sim_result sim_machine_export(const struct sim_entry* entry, int* fd);
// A descriptor to write to the allocation's file for a moment; -1: none. It does not hold the allocation.
int sim_machine_open_file(const struct sim_entry* entry);
// A process that the table does not list may hold the allocation from now on: only its file can tell.
void sim_machine_share(const struct sim_entry* entry);
// Takes part in holding what `fd` names. The descriptor stays the caller's. SIM_INVALID_VALUE: not device memory.
sim_result sim_machine_import(int fd, struct sim_entry* entry, unsigned* device, uint64_t* size, void** view);
// Copies what was ever written to; the rest of `to` stays as it is.
void sim_machine_copy_contents(const struct sim_entry* entry, void* to, const void* view, uint64_t size);
// CRIU may have brought this process back, with another start time: what it holds from now on is not a dead process's.
void sim_machine_begin_anew(void);
// This process no longer holds the entry (its views are unmapped).
void sim_machine_let_go(const struct sim_entry* entry);

// ---- signals: the state of interprocess events, which all processes see --------------------------------------------
// Records are numbered. A signal lives until its maker and all that opened it have let go, or are gone.
sim_result sim_signal_make(uint64_t recorded, uint64_t completed, struct sim_entry* name);
sim_result sim_signal_open(const struct sim_entry* name);  // SIM_INVALID_CONTEXT: in the process that made it
void sim_signal_let_go(const struct sim_entry* name);
uint64_t sim_signal_recorded(const struct sim_entry* name);  // the newest record, by whomever
uint64_t sim_signal_record(const struct sim_entry* name);    // returns the number of a new one
void sim_signal_complete(const struct sim_entry* name, uint64_t record);
bool sim_signal_passed(const struct sim_entry* name, uint64_t record);  // also where its process ended before

// For the files that show the machine: one writer at a time, and one process that looks again and again. No file has a
// lock: CRIU would not save it. A process that dies holding one of these gives it up.
void sim_machine_lock_files(void);
void sim_machine_unlock_files(void);
void sim_machine_become_watcher(void);  // returns once the caller is the one, for as long as its thread lives

uint64_t sim_machine_used(unsigned device);  // bytes, exact at the time of the call
size_t sim_machine_holders(unsigned device, struct sim_holder* holders, size_t capacity);

#endif
