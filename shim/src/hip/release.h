// SPDX-License-Identifier: Apache-2.0
//
// Some runtimes (ROCm 6.4.0, 7.2) keep the VRAM of memory that was unmapped and released while its address stays
// reserved: their unmap leaves the mapping of the buffer's file in the process. Whether this one does is found by trying,
// once, when memory first leaves the process.
#ifndef GCR_HIP_RELEASE_H
#define GCR_HIP_RELEASE_H

#include <stdint.h>

namespace gcr {
namespace hip {

enum class Release : uint32_t {
    kUnprobed,
    kPlain,  // unmap and release are enough
    kMapOver,  // and an inaccessible mapping over the range, which drops the last reference
};

Release chosen_release();  // what was found so far; makes no call

// The memory at these addresses was unmapped and released, and will be mapped there again.
void vacate(uint64_t address, uint64_t size);

}  // namespace hip
}  // namespace gcr

#endif  // GCR_HIP_RELEASE_H
