// SPDX-License-Identifier: Apache-2.0
//
// Snapshots, of the calling process only, as the vendor's open source has them (runtime v9.1.0, driver of 2026-07):
//
//     RUNNING -Lock-> LOCKED -Backup-> BACKED_UP -Restore-> LOCKED -Unlock-> RUNNING       BACKED_UP -Unlock-> RUNNING
//
// Lock      does not wait for calls inside or for streams; from now on calls that change device resources wait.
// Backup    waits for all streams, then notes what the process has. It frees nothing and copies no memory of the program.
// Restore   closes and opens the devices, so they must be free of other processes; then makes again what is noted *now*:
//           memory that was unmapped and freed meanwhile stays gone, imported memory is not mapped again, and memory
//           the program still has comes back at its address with contents that are not its own.
// Callbacks run in the calling thread, once per open device; a call that waits, made in one of Backup's or Restore's,
//           waits for ever.
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "front.h"

enum { STAGES = ACL_RT_SNAPSHOT_UNLOCK_POST + 1, CALLBACKS = 32, HOLDERS = 256 };

// Order: changing > callbacks_mutex > sim_lock. The vendor holds both over the callbacks, so we do.
static pthread_mutex_t changing = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t callbacks_mutex = PTHREAD_MUTEX_INITIALIZER;
static int state = RT_PROCESS_STATE_RUNNING;  // written with `changing`, read by anybody

static struct callback {
    aclrtSnapShotCallBack function;
    void* argument;
} callbacks[STAGES][CALLBACKS];
static unsigned callback_counts[STAGES];

static int current_state(void) {
    return __atomic_load_n(&state, __ATOMIC_ACQUIRE);
}

static void enter_state(int next) {
    __atomic_store_n(&state, next, __ATOMIC_RELEASE);
}

SIM_API rtError_t rtSnapShotProcessGetState(rtProcessState* out) {
    LOOK();
    REQUIRE(out);
    *out = current_state();
    return ACL_SUCCESS;
}

// ---- callbacks ------------------------------------------------------------------------------------------------------
static bool valid_stage(aclrtSnapShotStage stage) {
    return stage >= ACL_RT_SNAPSHOT_LOCK_PRE && stage <= ACL_RT_SNAPSHOT_UNLOCK_POST;
}

static unsigned index_of(aclrtSnapShotStage stage, aclrtSnapShotCallBack function) {
    unsigned i = 0;
    while (i < callback_counts[stage] && callbacks[stage][i].function != function) i++;
    return i;
}

static aclError add_callback(aclrtSnapShotStage stage, aclrtSnapShotCallBack function, void* argument) {
    unsigned place = index_of(stage, function);
    if (place < callback_counts[stage] || place == CALLBACKS) return ACL_ERROR_SNAPSHOT_REGISTER_CALLBACK_FAILED;
    callbacks[stage][place] = (struct callback){function, argument};
    callback_counts[stage]++;
    return ACL_SUCCESS;
}

static aclError remove_callback(aclrtSnapShotStage stage, aclrtSnapShotCallBack function) {
    unsigned place = index_of(stage, function);
    REQUIRE(place < callback_counts[stage]);
    callback_counts[stage]--;
    memmove(&callbacks[stage][place], &callbacks[stage][place + 1],
            (callback_counts[stage] - place) * sizeof **callbacks);
    return ACL_SUCCESS;
}

SIM_API aclError aclrtSnapShotCallbackRegister(aclrtSnapShotStage stage, aclrtSnapShotCallBack function,
                                               void* argument) {
    LOOK();
    REQUIRE(valid_stage(stage) && function);
    pthread_mutex_lock(&callbacks_mutex);
    aclError result = add_callback(stage, function, argument);
    pthread_mutex_unlock(&callbacks_mutex);
    return result;
}

SIM_API aclError aclrtSnapShotCallbackUnregister(aclrtSnapShotStage stage, aclrtSnapShotCallBack function) {
    LOOK();
    REQUIRE(valid_stage(stage) && function);
    pthread_mutex_lock(&callbacks_mutex);
    aclError result = remove_callback(stage, function);
    pthread_mutex_unlock(&callbacks_mutex);
    return result;
}

static uint32_t open_devices(void) {
    uint32_t devices = 0;
    sim_lock();
    for (const struct sim_context* context = sim_contexts(); context; context = context->next)
        if (context->alive) devices |= 1u << context->device;
    sim_unlock();
    return devices;
}

static aclError call_for_each_device(const struct callback* callback) {
    uint32_t devices = open_devices();
    for (int device = 0; device < SIM_MAX_DEVICES; device++)
        if (devices >> device & 1 && callback->function(device, callback->argument))
            return ACL_ERROR_SNAPSHOT_CALLBACK_FAILED;
    return ACL_SUCCESS;
}

static aclError call_back(aclrtSnapShotStage stage) {
    aclError result = ACL_SUCCESS;
    pthread_mutex_lock(&callbacks_mutex);
    for (unsigned i = 0; i < callback_counts[stage] && !result; i++)
        result = call_for_each_device(&callbacks[stage][i]);
    pthread_mutex_unlock(&callbacks_mutex);
    return result;
}

// ---- backup ---------------------------------------------------------------------------------------------------------
static aclError synchronize_everything(void) {
    aclError result = ACL_ERROR_RT_CONTEXT_NULL;  // so the runtime answers a process that uses no device
    LOCK();
    for (struct sim_context* context = sim_contexts(); context; context = context->next) {
        if (!context->alive) continue;
        result = front_result(sim_context_synchronize(context));
        if (result) return result;
    }
    return result;
}

static aclError back_up(void) {
    if (current_state() != RT_PROCESS_STATE_LOCKED) return ACL_ERROR_SNAPSHOT_BACKUP_FAILED;
    aclError result = call_back(ACL_RT_SNAPSHOT_BACKUP_PRE);
    if (!result) result = synchronize_everything();
    if (!result) sim_sleep_ms(sim_machine_config()->control_ms);
    if (!result) result = call_back(ACL_RT_SNAPSHOT_BACKUP_POST);
    if (!result) enter_state(RT_PROCESS_STATE_BACKED_UP);
    return result;
}

// ---- restore --------------------------------------------------------------------------------------------------------
static bool used_by_others(unsigned device) {
    struct sim_holder holders[HOLDERS];
    size_t count = sim_machine_holders(sim_device_real(device), holders, HOLDERS);
    for (size_t i = 0; i < count && i < HOLDERS; i++)
        if (holders[i].pid != getpid()) return true;
    return false;
}

static bool devices_are_ours(void) {
    uint32_t devices = open_devices();
    for (unsigned device = 0; device < SIM_MAX_DEVICES; device++)
        if (devices >> device & 1 && used_by_others(device)) return false;
    return true;
}

static void lose_contents(const struct sim_physical* physical) {
    if (madvise(physical->view, physical->size, MADV_REMOVE)) memset(physical->view, 0, physical->size);
}

static void unmap_everywhere(struct sim_physical* physical) {
    while (physical->first_mapping) {
        struct sim_range range = physical->first_mapping->range;
        if (sim_address_unmap(range.start, range.size)) return;
    }
}

static void reopen_devices_locked(void) {
    struct sim_ranges* all = sim_physical_all();
    for (size_t i = all->count; i-- > 0;) {  // backwards: the last mapping of a freed handle takes its entry along
        struct sim_physical* physical = (struct sim_physical*)all->items[i];
        if (physical->imported)
            unmap_everywhere(physical);
        else
            lose_contents(physical);
    }
}

static aclError restore(void) {
    if (current_state() != RT_PROCESS_STATE_BACKED_UP) return ACL_ERROR_SNAPSHOT_RESTORE_FAILED;
    aclError result = call_back(ACL_RT_SNAPSHOT_RESTORE_PRE);
    if (result) return result;
    if (!devices_are_ours()) return ACL_ERROR_RT_DRV_INTERNAL_ERROR;
    sim_sleep_ms(sim_machine_config()->control_ms);
    sim_lock();
    reopen_devices_locked();
    sim_unlock();
    result = call_back(ACL_RT_SNAPSHOT_RESTORE_POST);
    if (!result) enter_state(RT_PROCESS_STATE_LOCKED);
    return result;
}

// ---- lock and unlock ------------------------------------------------------------------------------------------------
static aclError lock(void) {
    if (current_state() != RT_PROCESS_STATE_RUNNING) return ACL_ERROR_SNAPSHOT_LOCK_FAILED;
    enter_state(RT_PROCESS_STATE_LOCKED);
    sim_gate_shut();
    return ACL_SUCCESS;
}

static aclError unlock(void) {
    if (current_state() == RT_PROCESS_STATE_RUNNING) return ACL_ERROR_SNAPSHOT_UNLOCK_FAILED;
    enter_state(RT_PROCESS_STATE_RUNNING);
    sim_gate_open();
    return ACL_SUCCESS;
}

static aclError change(aclError (*step)(void)) {
    pthread_mutex_lock(&changing);
    aclError result = step();
    pthread_mutex_unlock(&changing);
    return result;
}

// ---- the calls ------------------------------------------------------------------------------------------------------
// Before 9.1 the calls take no parameters: what a caller passes is not looked at.
static bool ours(int pid, const void* reserved) {
    return !front_is_at_least(9, 1) || (pid == getpid() && !reserved);
}

#define OURS(pid, reserved) \
    LOOK();                 \
    if (!ours(pid, reserved)) return ACL_ERROR_INVALID_PARAM

SIM_API aclError aclrtSnapShotProcessLock(int pid, void* reserved) {
    OURS(pid, reserved);
    aclError result = call_back(ACL_RT_SNAPSHOT_LOCK_PRE);
    return result ? result : change(lock);
}

SIM_API aclError aclrtSnapShotProcessUnlock(int pid, void* reserved) {
    OURS(pid, reserved);
    aclError result = change(unlock);
    return result ? result : call_back(ACL_RT_SNAPSHOT_UNLOCK_POST);
}

SIM_API aclError aclrtSnapShotProcessBackup(int pid, aclrtSnapShotBackupArgs* arguments) {
    OURS(pid, arguments);
    return change(back_up);
}

SIM_API aclError aclrtSnapShotProcessRestore(int pid, aclrtSnapShotRestoreArgs* arguments) {
    OURS(pid, arguments);
    return change(restore);
}
