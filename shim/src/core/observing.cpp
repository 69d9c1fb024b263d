// SPDX-License-Identifier: Apache-2.0
#include "core/observing.h"

#include "core/gate.h"

namespace gcr {
namespace {

// Each written by a crew's job, read when it rests.
Failure synchronize_result;
Stuck observed;

void synchronize_job() {
    session.vendors.enter_thread();
    synchronize_result = session.vendors.synchronize();
    end_examination();
}

void observe_job() {
    session.vendors.enter_thread();
    observed.count = session.vendors.stuck(observed.records, Stuck::kLimit);
    end_examination();
}

bool begin(Crew* crew, Crew::Job job) {
    begin_examination();
    bool begun = crew->begin(job);
    if (!begun) end_examination();
    return begun;
}

}  // namespace

bool begin_to_synchronize() {
    return begin(&session.synchronizer, synchronize_job);
}

Failure synchronization_result() {
    return synchronize_result;
}

bool observe(Stuck* stuck, uint32_t patience_ms) {
    stuck->count = 0;
    bool begun = begin(&session.observer, observe_job);
    if (begun) session.observer.wait(patience_ms);
    if (!begun || session.observer.busy()) return false;
    for (uint32_t i = 0; i < observed.count; i++) stuck->records[stuck->count++] = observed.records[i];
    return true;
}

}  // namespace gcr
