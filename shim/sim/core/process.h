// SPDX-License-Identifier: Apache-2.0
//
// This process as the driver sees it: started or not, running or locked, and the service others reach it by.
#ifndef GCR_SIM_PROCESS_H
#define GCR_SIM_PROCESS_H

#include "base.h"

enum sim_process_state {
    SIM_PROCESS_RUNNING = 0,
    SIM_PROCESS_LOCKED = 1,
    SIM_PROCESS_CHECKPOINTED = 2,
    SIM_PROCESS_FAILED = 3,
};

// Starts the driver in this process: opens the machine, shows it `count` of its devices, starts the front's part.
// Idempotent. In a child forked after that: SIM_NOT_INITIALIZED, for ever, as the driver answers.
sim_result sim_process_start(const unsigned* devices, unsigned count);
bool sim_process_started(void);

// For a driver that shuts down in exit(), by a handler of its own: those that the program registers later run before it,
// the earlier ones and destructors after it. From then on every call is refused: SIM_DEINITIALIZED.
void sim_process_ends_at_exit(void);
bool sim_process_ended(void);

// Around every call of the vendor's API. Waits while the process is locked, then takes the faults asked for.
// Nested calls pass. begin's result is what the call must return when it is not SIM_OK; end is due in any case.
sim_result sim_call_begin(const char* function);
void sim_call_end(void);

bool sim_process_checkpointed(void);  // its contexts are torn down

// ---- each front's own; service.c has what most do ----------------------------------------------------------------
bool sim_front_start(void);     // once, when the machine is open; false: the driver does not start
const char* sim_front_service(void);  // the beginning of its service's name: a process may have two drivers
void sim_front_saved(void);     // at a control checkpoint, before anything is saved
void sim_front_restored(void);  // after a control restore, with the gate still closed

// ---- the service's side -------------------------------------------------------------------------------------------
bool sim_gate_close(uint64_t deadline_ns);  // no call inside any more, nothing queued; false: opened again
void sim_gate_shut(void);                   // calls wait from now on; those inside, and streams, go on
void sim_gate_open(void);

// ---- the caller's side --------------------------------------------------------------------------------------------
enum sim_service_operation {
    SIM_SERVICE_STATE = 1,
    SIM_SERVICE_THREAD,
    SIM_SERVICE_LOCK,
    SIM_SERVICE_CHECKPOINT,
    SIM_SERVICE_RESTORE,
    SIM_SERVICE_UNLOCK,
};

struct sim_uuid_pair {
    uint8_t from[16];
    uint8_t to[16];
};

struct sim_service_request {
    uint32_t operation;
    uint32_t timeout_ms;  // lock; 0: none
    uint32_t pair_count;  // restore
    uint32_t reserved;
    struct sim_uuid_pair pairs[SIM_MAX_DEVICES];
};

struct sim_service_reply {
    int32_t result;
    int32_t value;  // state or thread id
};

// Asks process `pid` and waits for its answer. The target goes on if the caller dies meanwhile.
sim_result sim_service_ask(int pid, const struct sim_service_request* request, struct sim_service_reply* reply);
#define SIM_SERVICE_NAME "gcr-sim-service"  // of its thread
bool sim_service_start(void);
int sim_service_thread(void);
void sim_service_perform(const struct sim_service_request* request, struct sim_service_reply* reply);

#endif
