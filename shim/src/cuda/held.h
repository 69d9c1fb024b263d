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

// The program imported memory that it holds already: the driver gives the same handle once more, and so do we.
bool give_same_id(CUmemGenericAllocationHandle* out, CUmemGenericAllocationHandle made);

// What the driver is given for an id that is not (or no longer) alive: r580 takes a handle for an address and faults on
// one of ours; bare, the answer to a stale handle is INVALID_VALUE, and so it is to 0.
inline CUmemGenericAllocationHandle as_passed_on(CUmemGenericAllocationHandle id) {
    constexpr uint64_t kOurs = 0xffffff0000000000ull;
    return (id & kOurs) == (kFirstId & kOurs) ? 0 : id;
}

// A reference for the length of a driver call: another thread may release the last one meanwhile.
class Held {
  public:
    explicit Held(CUmemGenericAllocationHandle id);
    ~Held();
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;
    Handle* get() const { return handle_; }  // null: not one of ours
    CUmemGenericAllocationHandle real() const { return handle_ == nullptr ? as_passed_on(id_) : handle_->real; }

  private:
    CUmemGenericAllocationHandle id_;
    Handle* handle_;
};

}  // namespace cuda
}  // namespace gcr

#endif  // GCR_CUDA_HELD_H
