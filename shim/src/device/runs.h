// SPDX-License-Identifier: Apache-2.0
//
// Runs: mappings without a gap between them, which a driver may take in one call.
#ifndef GCR_DEVICE_RUNS_H
#define GCR_DEVICE_RUNS_H

#include "device/state.h"

namespace gcr {
namespace device {

using Mappings = Array<Mapping*>;

bool collect(State& state, bool (*wanted)(const Handle&), Mappings* mappings);  // in address order; false: no memory

// `done`: mappings that were acted on, all before the one that failed.
Result unmap_all(const State& state, const Mappings& mappings, size_t* done);
Result give_access(const State& state, const Mappings& mappings, size_t* done);
// The first `count` again where they were, with the access they had.
Result map_again(const State& state, const Mappings& mappings, size_t count);
Result map_one(const State& state, const Mapping& mapping);  // without access

}  // namespace device
}  // namespace gcr

#endif  // GCR_DEVICE_RUNS_H
