// SPDX-License-Identifier: Apache-2.0
#include "cuda/vendor.h"

#include "cuda/contexts.h"

#include <string.h>

#include "cuda/captures.h"
#include "cuda/driver.h"
#include "cuda/streams.h"

namespace gcr {
namespace cuda {
namespace {

enum Simulated : uint32_t { kUnknown, kNo, kYes };
std::atomic<uint32_t> known_simulated{kUnknown};  // learnt by enter_thread(): the driver may not be asked while frozen

void learn_name() {
    char name[64] = {};
    if (real::cuDeviceGetName(name, sizeof name - 1, 0) != CUDA_SUCCESS) return;
    bool simulated = strstr(name, "imulated") != nullptr || strstr(name, "SIMULATED") != nullptr;
    known_simulated.store(simulated ? kYes : kNo);
}

// Our threads must neither disturb a capture of the program nor be refused because of one.
void enter_thread() {
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    real::cuThreadExchangeStreamCaptureMode(&mode);
    if (known_simulated.load() == kUnknown) learn_name();
}

bool simulated() {
    return known_simulated.load() == kYes;
}

uint32_t count_contexts() {
    Guard guard(state.lock);
    return static_cast<uint32_t>(state.contexts.size());
}

void reset_after_fork() {
    reset_discarded_after_fork();
    state.contexts.clear();
}

bool gone(int32_t error) {
    CUcontext current = nullptr;
    return error == CUDA_ERROR_DEINITIALIZED && real::cuCtxGetCurrent(&current) == CUDA_ERROR_DEINITIALIZED;
}

const VendorOps kOps = {&state,        simulated, enter_thread,     count_contexts, synchronize_contexts,
                        stuck_streams, nullptr,   reset_after_fork, nullptr,        nullptr,
                        gone};

}  // namespace

const VendorOps& vendor_ops() {
    return kOps;
}

}  // namespace cuda
}  // namespace gcr
