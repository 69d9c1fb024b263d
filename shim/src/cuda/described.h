// SPDX-License-Identifier: Apache-2.0
//
// A call for the gate, from its arguments: the kernel and the stream among them, found by their types.
#ifndef GCR_CUDA_DESCRIBED_H
#define GCR_CUDA_DESCRIBED_H

#include <string.h>

#include <type_traits>

#include "abi/cuda.h"
#include "core/gate.h"
#include "cuda/captures.h"

namespace gcr {
namespace cuda {

using namespace cuda_abi;

struct Described {
    // Whether a call with these parameters launches kernels.
    template <class... P>
    static constexpr bool launches() {
        return ((std::is_same_v<P, CUfunction> || std::is_same_v<P, CUgraphExec> ||
                 std::is_same_v<P, const CUlaunchConfig*>) ||
                ...);
    }
    template <class... P>
    Call operator()(P... arguments) const {
        Call call;
        (take(call, arguments), ...);
        if (is_captured(call)) call.function = 0;  // its graph launches it
        return call;
    }

  private:
    static bool is_captured(const Call& call) {
        if (call.function == 0 || captures_in_progress() == 0) return false;
        PassiveEntry inside;  // the driver is asked
        return may_capture(reinterpret_cast<CUstream>(call.stream), false);
    }

    static constexpr size_t kStreamOfConfig = 32;  // in a CUlaunchConfig, after seven numbers

    // By each of its names a context's default stream is 0.
    static void take(Call& call, CUstream stream) {
        call.stream = stream == legacy_stream() ? 0 : reinterpret_cast<uint64_t>(stream);
    }
    static void take(Call& call, CUfunction function) { call.function = reinterpret_cast<uint64_t>(function); }
    static void take(Call& call, CUgraphExec graph) { call.function = reinterpret_cast<uint64_t>(graph); }
    static void take(Call& call, const CUlaunchConfig* config) {
        if (config == nullptr) return;
        CUstream stream;
        memcpy(&stream, reinterpret_cast<const char*>(config) + kStreamOfConfig, sizeof stream);
        take(call, stream);
    }
    template <class Other>
    static void take(Call&, const Other&) {}
};

}  // namespace cuda
}  // namespace gcr

#endif  // GCR_CUDA_DESCRIBED_H
