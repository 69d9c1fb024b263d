// SPDX-License-Identifier: Apache-2.0
#include "core/coverage.h"

#include <atomic>

namespace gcr {
namespace {

struct Counter {
    std::atomic<uint64_t> bytes{0};
    std::atomic<uint64_t> count{0};
};

Counter counters[wire::kReasonCount];

bool known(Reason reason) {
    return reason > 0 && reason < wire::kReasonCount;
}

}  // namespace

// relaxed throughout: sums, read after the gate's own fences when they must be exact
void add_uncovered(Reason reason, uint64_t bytes) {
    if (!known(reason)) return;
    counters[reason].bytes.fetch_add(bytes, std::memory_order_relaxed);
    counters[reason].count.fetch_add(1, std::memory_order_relaxed);
}

void drop_uncovered(Reason reason, uint64_t bytes) {
    if (!known(reason)) return;
    counters[reason].bytes.fetch_sub(bytes, std::memory_order_relaxed);
    counters[reason].count.fetch_sub(1, std::memory_order_relaxed);
}

Uncovered uncovered(Reason reason) {
    if (!known(reason)) return {0, 0};
    return {counters[reason].bytes.load(std::memory_order_relaxed),
            counters[reason].count.load(std::memory_order_relaxed)};
}

// The driver would take a process with any reason of `default`, and never give it back.
Refuse refuse_for(Reason reason) {
    switch (reason) {
        case wire::kReasonPool:
        case wire::kReasonArray:
        case wire::kReasonCapture:
        case wire::kReasonUnexportable:
        case wire::kReasonBeforeShim:
            return wire::kRefuseNone;
        case wire::kReasonIpcEvent:
            return wire::kRefuseWhole;
        default:
            return wire::kRefuseAlways;
    }
}

void reset_coverage() {
    for (Counter& counter : counters) {
        counter.bytes.store(0, std::memory_order_relaxed);
        counter.count.store(0, std::memory_order_relaxed);
    }
}

}  // namespace gcr
