// SPDX-License-Identifier: Apache-2.0
#include "hip/vendor.h"

#include <string.h>

#include "core/gate.h"
#include "hip/captures.h"
#include "hip/streams.h"
#include "hooks/hip_calls.h"

namespace gcr {
namespace hip {
namespace {

enum Simulated : uint32_t { kUnknown, kNo, kYes };
std::atomic<uint32_t> known_simulated{kUnknown};

void learn_name() {
    char name[256] = {};
    if (real::hipDeviceGetName(name, sizeof name - 1, 0) != hipSuccess) return;
    bool simulated = strstr(name, "imulated") != nullptr || strstr(name, "SIMULATED") != nullptr;
    known_simulated.store(simulated ? kYes : kNo);
}

// Our threads must neither disturb a capture of the program nor be refused because of one, nor wait at the gate when
// the runtime calls its own exports on them.
void enter_thread() {
    stand_aside();
    hipStreamCaptureMode mode = hipStreamCaptureModeRelaxed;
    real::hipThreadExchangeStreamCaptureMode(&mode);
    if (known_simulated.load() == kUnknown) learn_name();
}

bool simulated() {
    return known_simulated.load() == kYes;
}

uint32_t count_used() {
    uint32_t count = 0;
    for (uint32_t used = state.used.load(std::memory_order_relaxed); used != 0; used &= used - 1) count++;
    return count;
}

void reset_after_fork() {
    arrived = false;
    state.used.store(0, std::memory_order_relaxed);
    for (auto& owner : state.owners) owner.store(nullptr, std::memory_order_relaxed);
}

bool gone(int32_t error) {
    int count = 0;
    return error == hipErrorDeinitialized && real::hipGetDeviceCount(&count) == hipErrorDeinitialized;
}

const VendorOps kOps = {&state,        simulated, enter_thread,     count_used, synchronize_devices,
                        stuck_streams, nullptr,   reset_after_fork, nullptr,    nullptr,
                        gone};

}  // namespace

const VendorOps& vendor_ops() {
    return kOps;
}

}  // namespace hip
}  // namespace gcr
