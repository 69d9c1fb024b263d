// SPDX-License-Identifier: Apache-2.0
#include "cuda/physical.h"

#include "core/agent.h"
#include "cuda/driver.h"
#include "cuda/memory.h"

namespace gcr {
namespace cuda {
namespace {

CUmemAllocationProp exportable_form(const CUmemAllocationProp& asked) {
    CUmemAllocationProp form = asked;
    form.requestedHandleTypes |= CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    if (device_facts(asked.location.id).rdma) form.allocFlags.gpuDirectRDMACapable = 1;
    return form;
}

CUresult create_once(uint64_t size, const CUmemAllocationProp& asked, unsigned long long flags, Physical* made) {
    CUmemAllocationProp form = exportable_form(asked);
    made->exportable = true;
    CUresult result = real::cuMemCreate(&made->real, size, &form, flags);
    if (result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY) return result;
    made->exportable = (asked.requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0;
    return real::cuMemCreate(&made->real, size, &asked, flags);
}

}  // namespace

CUresult create_physical(uint64_t size, const CUmemAllocationProp& asked, unsigned long long flags, Physical* made) {
    CUresult result = create_once(size, asked, flags, made);
    if (result != CUDA_ERROR_OUT_OF_MEMORY) return result;
    bool kept_for_reuse = give_back_spares();
    bool others_let_go = ask_to_let_go();  // handles of ours that somebody still maps
    return kept_for_reuse || others_let_go ? create_once(size, asked, flags, made) : result;
}

CUresult destroy_physical(Handle* handle) {
    if (handle->exported || handle->kept) tell_released(handle->key);
    CUresult result = handle->released ? CUDA_SUCCESS : real::cuMemRelease(handle->real);
    free(handle);
    return result;
}

bool retire_if_unused(Handle* handle) {
    if (handle->retains > 0 || handle->mapped > 0) return false;
    handle->dying = true;
    state.handles.erase(handle);
    if (handle->exported) state.exported--;
    if (handle->reason != kCovered) drop_uncovered(handle->reason, handle->size);
    return true;
}

}  // namespace cuda
}  // namespace gcr
