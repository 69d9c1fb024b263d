// SPDX-License-Identifier: Apache-2.0
#include "device/held.h"

#include "device/physical.h"

namespace gcr {
namespace device {

Result give_id(State& state, uint64_t made, uint64_t size, const Properties& asked, Reason reason, uint64_t* id) {
    Handle* handle;
    {
        Guard guard(state.lock);
        handle = record_handle(state, made, size, asked, reason, false);
    }
    if (handle == nullptr) {
        state.ops->release(made);
        return state.ops->out_of_memory;
    }
    *id = handle->key;
    return kSuccess;
}

bool give_same_id(State& state, uint64_t made, uint64_t* id) {
    {
        Guard guard(state.lock);
        Handle* handle = state.handles.first();
        while (handle != nullptr && (handle->real != made || find_handle(state, handle->key) == nullptr))
            handle = state.handles.after(handle);
        if (handle == nullptr) return false;
        handle->retains++;
        *id = handle->key;
    }
    state.ops->release(made);  // we hold one reference an id, however many the program has
    return true;
}

bool release_reference(State& state, uint64_t id, Result* result) {
    Handle* handle;
    bool unused = false;
    {
        Guard guard(state.lock);
        handle = find_handle(state, id);
        if (handle == nullptr) return false;
        handle->retains--;
        unused = retire_if_unused(state, handle);
    }
    *result = unused ? destroy_physical(state, handle) : kSuccess;
    return true;
}

bool properties_of(State& state, uint64_t id, Properties* asked) {
    Guard guard(state.lock);
    Handle* handle = find_handle(state, id);
    if (handle != nullptr) *asked = handle->asked;
    return handle != nullptr;
}

Held::Held(State& state, uint64_t id) : state_(state), id_(id) {
    Guard guard(state.lock);
    handle_ = find_handle(state, id);
    if (handle_ != nullptr) handle_->mapped++;
}

Held::~Held() {
    if (handle_ == nullptr) return;
    bool unused;
    {
        Guard guard(state_.lock);
        handle_->mapped--;
        unused = retire_if_unused(state_, handle_);
    }
    if (unused) destroy_physical(state_, handle_);
}

}  // namespace device
}  // namespace gcr
