// SPDX-License-Identifier: Apache-2.0
//
// The hand-over: physical memory leaves as descriptors, and comes back to the same addresses with the same access.
// The agent's thread. While the gate is closed nobody else changes the tables; exports also run while the program does.
#ifndef GCR_CUDA_HANDOVER_H
#define GCR_CUDA_HANDOVER_H

#include "core/vendor.h"

namespace gcr {
namespace cuda {

Failure export_after(uint64_t after_id, ExportBatch* batch);
void mappings_after(uint64_t cursor, MappingPage* page);
Failure hand_over(Tally* tally);
Failure import_handles(const uint64_t* ids, const int* descriptors, uint32_t count, Tally* tally);
Failure map_imported(Tally* tally);
Failure discard_imported(Tally* tally);
void end_exports();

}  // namespace cuda
}  // namespace gcr

#endif  // GCR_CUDA_HANDOVER_H
