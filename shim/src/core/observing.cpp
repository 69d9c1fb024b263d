// SPDX-License-Identifier: Apache-2.0
#include "core/observing.h"

namespace gcr {
namespace {

// Each written by a crew's job, read when it rests.
Failure synchronize_result;
Stuck observed;

void synchronize_job() {
    session.vendors.enter_thread();
    synchronize_result = session.vendors.synchronize();
}

void observe_job() {
    session.vendors.enter_thread();
    observed.count = session.vendors.stuck(observed.records, Stuck::kLimit);
}

}  // namespace

bool begin_to_synchronize() {
    return session.synchronizer.begin(synchronize_job);
}

Failure synchronization_result() {
    return synchronize_result;
}

bool observe(Stuck* stuck, uint32_t patience_ms) {
    stuck->count = 0;
    bool begun = session.observer.begin(observe_job);
    if (begun) session.observer.wait(patience_ms);
    if (!begun || session.observer.busy()) return false;
    for (uint32_t i = 0; i < observed.count; i++) stuck->records[stuck->count++] = observed.records[i];
    return true;
}

}  // namespace gcr
