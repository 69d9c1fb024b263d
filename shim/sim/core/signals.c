// SPDX-License-Identifier: Apache-2.0
//
// Signals: numbers of records, in the machine's table. As on a device (H100, r580) they do not depend on whether any
// process that knows them is checkpointed. Only there a record that ended with its process is never passed.
#include "table.h"

// With the table locked. Null: no such signal any more.
static struct sim_table_signal* find(const struct sim_entry* name) {
    if (name->slot >= SIM_SIGNALS || !name->generation) return NULL;
    struct sim_table_signal* signal = &sim_table->signals[name->slot];
    return signal->generation == name->generation ? signal : NULL;
}

// The maker's end is looked for once there is no free one.
static struct sim_table_signal* free_one(bool reap) {
    for (uint32_t i = 0; i < SIM_SIGNALS; i++) {
        uint32_t slot = (sim_table->next_signal + i) % SIM_SIGNALS;
        struct sim_table_signal* signal = &sim_table->signals[slot];
        if (signal->generation && !(reap && sim_is_gone(signal->maker))) continue;
        sim_table->next_signal = slot + 1;
        return signal;
    }
    return NULL;
}

sim_result sim_signal_make(uint64_t recorded, uint64_t completed, struct sim_entry* name) {
    sim_table_lock();
    struct sim_table_signal* signal = free_one(false);
    if (!signal) signal = free_one(true);
    if (signal) {
        uint64_t own = sim_own_key();
        *name = (struct sim_entry){(uint32_t)(signal - sim_table->signals), sim_table->next_generation++};
        *signal = (struct sim_table_signal){.generation = name->generation,
                                            .maker = own,
                                            .recorder = own,
                                            .recorded = recorded,
                                            .completed = completed,
                                            .references = 1};
    }
    sim_table_unlock();
    return signal ? SIM_OK : SIM_OUT_OF_MEMORY;
}

sim_result sim_signal_open(const struct sim_entry* name) {
    sim_result result = SIM_NOT_FOUND;
    sim_table_lock();
    struct sim_table_signal* signal = find(name);
    if (signal && sim_is_own_key(signal->maker)) {
        result = SIM_INVALID_CONTEXT;
    } else if (signal) {
        signal->references++;
        result = SIM_OK;
    }
    sim_table_unlock();
    return result;
}

void sim_signal_let_go(const struct sim_entry* name) {
    sim_table_lock();
    struct sim_table_signal* signal = find(name);
    if (signal && --signal->references == 0) signal->generation = 0;
    sim_table_unlock();
}

uint64_t sim_signal_recorded(const struct sim_entry* name) {
    sim_table_lock();
    const struct sim_table_signal* signal = find(name);
    uint64_t recorded = signal ? signal->recorded : 0;
    sim_table_unlock();
    return recorded;
}

uint64_t sim_signal_record(const struct sim_entry* name) {
    uint64_t record = 0;
    sim_table_lock();
    struct sim_table_signal* signal = find(name);
    if (signal) {
        record = ++signal->recorded;
        signal->recorder = sim_own_key();
    }
    sim_table_unlock();
    return record;
}

void sim_signal_complete(const struct sim_entry* name, uint64_t record) {
    sim_table_lock();
    struct sim_table_signal* signal = find(name);
    if (signal && signal->completed < record) signal->completed = record;
    sim_table_unlock();
}

bool sim_signal_passed(const struct sim_entry* name, uint64_t record) {
    sim_table_lock();
    const struct sim_table_signal* signal = find(name);
    bool passed = !signal || signal->completed >= record;
    uint64_t recorder = passed ? 0 : signal->recorder;
    sim_table_unlock();
    return passed || sim_is_gone(recorder);
}
