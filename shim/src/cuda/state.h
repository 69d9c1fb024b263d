// SPDX-License-Identifier: Apache-2.0
//
// The CUDA half's State: what device::State keeps, and the contexts and streams it belongs to, under the same lock.
#ifndef GCR_CUDA_STATE_H
#define GCR_CUDA_STATE_H

#include "abi/cuda.h"
#include "core/vendor.h"
#include "device/state.h"

namespace gcr {
namespace cuda {

using namespace cuda_abi;

using device::Allocation;
using device::Entry;
using device::Handle;
using device::kCovered;
using device::make;
using device::Mapping;
using device::Properties;

struct Context : device::Owner {
    CUcontext handle = nullptr;
    std::atomic<uint32_t> pins{0};  // our own threads working with it; it is not destroyed meanwhile
    uint32_t retains = 0;  // primary: cuDevicePrimaryCtxRetain of the program not yet released
    uint32_t attaches = 0;  // cuCtxAttach of the program not yet detached
};

struct State : device::State {
    using device::State::State;
    Array<Context*> contexts;
};

extern State state;

inline Context* context_of(const Allocation& allocation) {
    return static_cast<Context*>(allocation.mapping->owner);
}

}  // namespace cuda
}  // namespace gcr

#endif  // GCR_CUDA_STATE_H
