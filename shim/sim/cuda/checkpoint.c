// SPDX-License-Identifier: Apache-2.0
//
// cuCheckpointProcess*: asks the service of another process. Not blocked by our own lock, unlike nearly all else.
#include <string.h>

#include "fault.h"
#include "front.h"

static CUresult ask(const char* function, int pid, const struct sim_service_request* request, int* value) {
    if (!sim_process_started()) return CUDA_ERROR_NOT_INITIALIZED;
    sim_result result = sim_fault(function);
    struct sim_service_reply reply = {0};
    if (!result) result = sim_service_ask(pid, request, &reply);
    if (!result && value) *value = reply.value;
    return front_result(result);
}

static CUresult simple(const char* function, int pid, enum sim_service_operation operation, int* value) {
    struct sim_service_request request = {.operation = operation};
    return ask(function, pid, &request, value);
}

SIM_API CUresult cuCheckpointProcessGetState(int pid, int* state) {
    return state ? simple(__func__, pid, SIM_SERVICE_STATE, state) : CUDA_ERROR_INVALID_VALUE;
}

SIM_API CUresult cuCheckpointProcessGetRestoreThreadId(int pid, int* thread) {
    return thread ? simple(__func__, pid, SIM_SERVICE_THREAD, thread) : CUDA_ERROR_INVALID_VALUE;
}

SIM_API CUresult cuCheckpointProcessLock(int pid, const CUcheckpointLockArgs* args) {
    struct sim_service_request request = {.operation = SIM_SERVICE_LOCK, .timeout_ms = args ? args->timeoutMs : 0};
    return ask(__func__, pid, &request, NULL);
}

SIM_API CUresult cuCheckpointProcessCheckpoint(int pid, const void* args) {
    return simple(__func__, pid, SIM_SERVICE_CHECKPOINT, NULL);
}

SIM_API CUresult cuCheckpointProcessRestore(int pid, const CUcheckpointRestoreArgs* args) {
    struct sim_service_request request = {.operation = SIM_SERVICE_RESTORE};
    if (args && args->gpuPairsCount) {
        if (!args->gpuPairs || args->gpuPairsCount > SIM_MAX_DEVICES) return CUDA_ERROR_INVALID_VALUE;
        request.pair_count = args->gpuPairsCount;
        memcpy(request.pairs, args->gpuPairs, args->gpuPairsCount * sizeof request.pairs[0]);
    }
    return ask(__func__, pid, &request, NULL);
}

SIM_API CUresult cuCheckpointProcessUnlock(int pid, const void* args) {
    return simple(__func__, pid, SIM_SERVICE_UNLOCK, NULL);
}
