// SPDX-License-Identifier: Apache-2.0
#include "cuda/driver.h"

namespace gcr {
namespace cuda {

CurrentContext::CurrentContext(CUcontext context) {
    if (context != nullptr) pushed_ = real::cuCtxPushCurrent_v2(context) == CUDA_SUCCESS;
}

CurrentContext::~CurrentContext() {
    CUcontext popped = nullptr;
    if (pushed_) real::cuCtxPopCurrent_v2(&popped);
}

Context* pin_context(CUdevice device) {
    Context* found = nullptr;
    Guard guard(state.lock);
    for (Context* context : state.contexts)
        if (found == nullptr || context->device == device) found = context;
    if (found != nullptr) found->pins++;
    return found;
}

Context* pin_context(CUcontext handle) {
    Guard guard(state.lock);
    for (Context* context : state.contexts) {
        if (context->handle != handle) continue;
        context->pins++;
        return context;
    }
    return nullptr;
}

void unpin_context(Context* context) {
    if (context != nullptr) context->pins--;
}

}  // namespace cuda
}  // namespace gcr
