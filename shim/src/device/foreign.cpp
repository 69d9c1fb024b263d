// SPDX-License-Identifier: Apache-2.0
#include "device/foreign.h"

#include "device/devices.h"

namespace gcr {
namespace device {
namespace {

bool names(const Blob& blob, const Handle& handle) {
    if (is_own(blob)) return handle.key == blob.id && coverable(handle);
    return is_foreign(handle) && is_memory_of(blob, handle);
}

// One that the program has released and still maps counts: the driver gives the same handle.
bool find_again(State& state, const Blob& blob, uint64_t* id) {
    Guard guard(state.lock);
    Handle* handle = state.handles.first();
    while (handle != nullptr && (handle->internal || !names(blob, *handle))) handle = state.handles.after(handle);
    if (handle == nullptr || (handle->retains == 0 && handle->mapped == 0)) return false;
    handle->retains++;
    *id = handle->key;
    return true;
}

Result import_lent(State& state, const Blob& blob, AskProperties ask, uint64_t size, int descriptor, uint64_t* id) {
    Blob* foreign = make<Blob>();
    if (foreign == nullptr) return state.ops->out_of_memory;
    *foreign = blob;
    uint64_t real = 0;
    Result result = state.ops->import_fd(descriptor, &real);
    if (result == kSuccess) {
        Properties asked = ask(real);
        Guard guard(state.lock);
        Handle* handle = record_handle(state, real, size, asked, kCovered, false);
        if (handle != nullptr) {
            handle->foreign = foreign;
            *id = handle->key;
            return kSuccess;
        }
        result = state.ops->out_of_memory;
    }
    free(foreign);
    if (real != 0) state.ops->release(real);
    return result;
}

}  // namespace

Result redeem(State& state, const Blob& blob, AskProperties ask, uint64_t* id) {
    Guard opening(state.opening);
    if (find_again(state, blob, id)) return kSuccess;
    Lent lent;
    int descriptor = -1;
    if (is_own(blob) || !borrow(blob, &lent, &descriptor))
        return state.ops->invalid_value;  // freed, or its owner ended
    Result result = import_lent(state, blob, ask, lent.handle_size, descriptor, id);
    close_descriptor(descriptor);
    if (result != kSuccess) return_loan(blob);
    return result;
}

}  // namespace device
}  // namespace gcr
