// SPDX-License-Identifier: Apache-2.0
//
// The hash kernel as a module of a SIMULATED device: the kernel's own source, its steps run for each block and each thread
// in turn, with the end of a step for a barrier.
#include <gcr_sim_kernel.h>

#include "gcr/hashing/chunk_hash.h"

namespace {

using namespace gcr_hash;

void run_block(const Launch& launch, Sum block, Word threads) {
    static thread_local Shared shared;
    for (Word thread = 0; thread < threads; thread++) step_key(launch, shared, thread, threads);
    for (Word thread = 0; thread < threads; thread++) step_tiles(launch, shared, block, thread, threads);
    for (Word thread = 0; thread < threads; thread++) step_parts(shared, thread, threads);
    for (Word thread = 0; thread < threads; thread++) step_finish(launch, shared, block, thread);
}

template <typename T>
T param(void** params, int index) {
    return *static_cast<T*>(params[index]);
}

size_t key_bytes(Word chunk_bytes) {
    const size_t tiles = (chunk_bytes + kTileBytes - 1) / kTileBytes;
    return (kLevel2At + tiles * kLanes * 2 * kRepeats + 2 * kRepeats) * sizeof(Word);
}

}  // namespace

extern "C" {

GCR_SIM_KERNEL extern const uint32_t gcr_hash_chunks__params[] = {5, 8, 8, 4, 8, 8};

GCR_SIM_KERNEL void gcr_hash_chunks(gcr_sim_launch* launch, void** params) {
    Launch asked = {nullptr, param<Sum>(params, 1), param<Word>(params, 2), nullptr, nullptr};
    const Sum blocks = launch->grid[0];
    asked.data = static_cast<unsigned char*>(launch->view(launch, param<Sum>(params, 0), asked.size, 0));
    asked.key = static_cast<Word*>(launch->view(launch, param<Sum>(params, 3), key_bytes(asked.chunk_bytes), 0));
    asked.digests = static_cast<Sum*>(launch->view(launch, param<Sum>(params, 4), blocks * 16, 1));
    if (!asked.data || !asked.key || !asked.digests) return;
    for (Sum block = 0; block < blocks && !launch->stopping(launch); block++) run_block(asked, block, launch->block[0]);
}
}
