// SPDX-License-Identifier: Apache-2.0
//
// What stands around the driver's calls when the shim itself makes them: contexts, current and kept alive.
#ifndef GCR_CUDA_DRIVER_H
#define GCR_CUDA_DRIVER_H

#include "cuda/state.h"
#include "hooks/cuda_real.h"

namespace gcr {
namespace cuda {

// Makes a context current for as long as it lives, and the one before it afterwards. Null: does nothing.
class CurrentContext {
  public:
    explicit CurrentContext(CUcontext context);
    ~CurrentContext();
    CurrentContext(const CurrentContext&) = delete;
    CurrentContext& operator=(const CurrentContext&) = delete;

  private:
    bool pushed_ = false;
};

// A context that stays alive while we work with it. For our own threads, which the program does not know of.
Context* pin_context(CUdevice device);  // of that device if there is one, else any; null: there is none
Context* pin_context(CUcontext handle);
void unpin_context(Context* context);  // null: does nothing

class PinnedContext {
  public:
    explicit PinnedContext(CUcontext handle) : context_(pin_context(handle)) {}
    ~PinnedContext() { unpin_context(context_); }
    PinnedContext(const PinnedContext&) = delete;
    PinnedContext& operator=(const PinnedContext&) = delete;
    CUcontext handle() const { return context_ == nullptr ? nullptr : context_->handle; }
    CUdevice device() const { return context_ == nullptr ? -1 : context_->device; }

  private:
    Context* context_;
};

}  // namespace cuda
}  // namespace gcr

#endif  // GCR_CUDA_DRIVER_H
