// SPDX-License-Identifier: Apache-2.0
#include "cuda/held.h"

#include "cuda/physical.h"
#include "hooks/real.h"

namespace gcr {
namespace cuda {

CUresult give_id(CUmemGenericAllocationHandle* out, CUmemGenericAllocationHandle made, uint64_t size,
                 const CUmemAllocationProp& asked, Reason reason) {
    Handle* handle;
    {
        Guard guard(state.lock);
        handle = record_handle(made, size, asked, reason, false);
    }
    if (handle == nullptr) {
        real::cuMemRelease(made);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *out = handle->key;
    return CUDA_SUCCESS;
}

bool give_same_id(CUmemGenericAllocationHandle* out, CUmemGenericAllocationHandle made) {
    {
        Guard guard(state.lock);
        Handle* handle = state.handles.first();
        while (handle != nullptr && (handle->real != made || find_handle(handle->key) == nullptr))
            handle = state.handles.after(handle);
        if (handle == nullptr) return false;
        handle->retains++;
        *out = handle->key;
    }
    real::cuMemRelease(made);  // we hold one reference an id, however many the program has
    return true;
}

Held::Held(CUmemGenericAllocationHandle id) : id_(id) {
    Guard guard(state.lock);
    handle_ = find_handle(id);
    if (handle_ != nullptr) handle_->mapped++;
}

Held::~Held() {
    if (handle_ == nullptr) return;
    bool unused;
    {
        Guard guard(state.lock);
        handle_->mapped--;
        unused = retire_if_unused(handle_);
    }
    if (unused) destroy_physical(handle_);
}

}  // namespace cuda
}  // namespace gcr
