// SPDX-License-Identifier: Apache-2.0
//
// The program's contexts, and what stands around the runtime's calls when the shim itself makes them.
#ifndef GCR_ACL_CONTEXTS_H
#define GCR_ACL_CONTEXTS_H

#include "acl/state.h"

namespace gcr {
namespace acl {

// A context that stays alive while we work with it. Of that device if there is one, else any; null: there is none.
Context* pin_context_of(int device);
Context* pin_context(aclrtContext handle);
void unpin_context(Context* context);  // null: does nothing

class PinnedContext {
  public:
    explicit PinnedContext(Context* pinned) : context_(pinned) {}
    ~PinnedContext() { unpin_context(context_); }
    PinnedContext(const PinnedContext&) = delete;
    PinnedContext& operator=(const PinnedContext&) = delete;
    aclrtContext handle() const { return context_ == nullptr ? nullptr : context_->handle; }
    int device() const { return context_ == nullptr ? -1 : context_->device; }

  private:
    Context* context_;
};

// Makes a context current for as long as it lives, and the one before it afterwards. Null: does nothing.
class CurrentContext {
  public:
    explicit CurrentContext(aclrtContext context);
    ~CurrentContext();
    CurrentContext(const CurrentContext&) = delete;
    CurrentContext& operator=(const CurrentContext&) = delete;

  private:
    aclrtContext before_ = nullptr;
    bool changed_ = false;
};

int current_device();                // the calling thread's; -1: none
Owner* owner_of(int device);         // null: no such device, or no host memory
Owner* current_owner();
Failure synchronize_devices();       // on a helper thread; may take for ever

}  // namespace acl
}  // namespace gcr

#endif  // GCR_ACL_CONTEXTS_H
