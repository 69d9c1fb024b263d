// SPDX-License-Identifier: Apache-2.0
//
// Virtual handles, as the program's calls use them. No function here is called with state.lock held.
#ifndef GCR_CUDA_HELD_H
#define GCR_CUDA_HELD_H

#include "cuda/state.h"

namespace gcr {
namespace cuda {

// Gives the program an id for what the driver made; on failure the driver has it back.
CUresult give_id(CUmemGenericAllocationHandle* out, CUmemGenericAllocationHandle made, uint64_t size,
                 const CUmemAllocationProp& asked, Reason reason);

// A reference for the length of a driver call: another thread may release the last one meanwhile.
class Held {
  public:
    explicit Held(CUmemGenericAllocationHandle id);
    ~Held();
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;
    Handle* get() const { return handle_; }  // null: not one of ours
    CUmemGenericAllocationHandle real() const { return handle_ == nullptr ? id_ : handle_->real; }

  private:
    CUmemGenericAllocationHandle id_;
    Handle* handle_;
};

}  // namespace cuda
}  // namespace gcr

#endif  // GCR_CUDA_HELD_H
