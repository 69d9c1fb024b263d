// SPDX-License-Identifier: Apache-2.0
#include "device/loans.h"

#include <fcntl.h>
#include <unistd.h>

#include "core/agent.h"
#include "core/gate.h"
#include "core/life.h"
#include "core/ticket.h"
#include "device/devices.h"
#include "device/physical.h"

namespace gcr {
namespace device {
namespace {

bool can_be_lent(State& state, Handle* handle) {
    Guard guard(state.lock);
    if (!coverable(*handle) || !exports(state, handle->device)) return false;
    handle->lent = true;
    return true;
}

// Under state.lock. Null: freed since, and whatever is there now is not what the blob names.
const Allocation* allocation_named(const State& state, const Blob& blob) {
    const Allocation* allocation = state.allocations.find(blob.address);
    return allocation != nullptr && allocation->id == blob.id ? allocation : nullptr;
}

// Under state.lock. `lent`: where in the handle it lies.
Handle* named_by(const State& state, const Blob& blob, Lent* lent) {
    Handle* handle;
    if (blob.address == 0) {
        handle = state.handles.find(blob.id);
        if (handle != nullptr) *lent = {handle->key, handle->size, 0, handle->size, {}};
    } else {
        const Allocation* allocation = allocation_named(state, blob);
        handle = allocation == nullptr ? nullptr : allocation->mapping->handle;
        if (handle != nullptr)
            *lent = {handle->key, handle->size, allocation->key - allocation->mapping->key, allocation->size, {}};
    }
    if (handle == nullptr || !handle->lent || !coverable(*handle)) return nullptr;
    memcpy(lent->uuid, state.devices[handle->device].uuid, sizeof lent->uuid);
    return handle;
}

// Under state.lock. False: no host memory.
bool note_loan(Handle* handle, const Borrower& borrower) {
    Loan* loan = handle->loans;
    while (loan != nullptr && loan->borrower.process != borrower.process) loan = loan->next;
    if (loan == nullptr) {
        loan = make<Loan>();
        if (loan == nullptr) return false;
        loan->borrower = borrower;
        loan->next = handle->loans;
        handle->loans = loan;
    }
    loan->count++;
    return true;
}

// Under state.lock: drops `count` of each loan for which `ends` is true. True: the handle is to be destroyed.
template <typename Ends>
bool end_loans(State& state, Handle* handle, uint32_t count, Ends ends) {
    for (Loan** place = &handle->loans; *place != nullptr;) {
        Loan* loan = *place;
        if (ends(loan->borrower)) loan->count -= loan->count < count ? loan->count : count;
        if (loan->count > 0) {
            place = &loan->next;
            continue;
        }
        *place = loan->next;
        free(loan);
    }
    return retire_if_unused(state, handle);
}

int export_lent(const State& state, const Handle& handle) {
    int descriptor = -1;
    Current current(state, handle.device);
    if (state.ops->export_fd(handle.real, &descriptor) != kSuccess) return -1;
    fcntl(descriptor, F_SETFD, FD_CLOEXEC);
    return descriptor;
}

// A loan is noted before the descriptor is made: from then on the handle stays.
Handle* begin_loan(State& state, const Blob& blob, const Borrower& borrower, Lent* lent) {
    Guard guard(state.lock);
    Handle* handle = named_by(state, blob, lent);
    return handle != nullptr && note_loan(handle, borrower) ? handle : nullptr;
}

// Under state.lock. One that the program has freed, and whose holders have died.
Handle* take_abandoned(State& state) {
    Census census;
    auto is_gone = [&](const Borrower& borrower) { return census.is_gone(borrower); };
    for (Handle* handle = state.handles.first(); handle != nullptr; handle = state.handles.after(handle))
        if (handle->loans != nullptr && end_loans(state, handle, UINT32_MAX, is_gone)) return handle;
    return nullptr;
}

void destroy_here(State& state, Handle* handle) {
    Current current(state, handle->device);
    destroy_physical(state, handle);
}

bool any_dead(State& state) {
    Census census;
    Guard guard(state.lock);
    for (Handle* handle = state.handles.first(); handle != nullptr; handle = state.handles.after(handle))
        for (const Loan* loan = handle->loans; loan != nullptr; loan = loan->next)
            if (census.is_gone(loan->borrower)) return true;
    return false;
}

}  // namespace

bool Census::is_gone(const Borrower& borrower) {
    for (size_t i = 0; i < known_; i++)
        if (processes_[i] == borrower.process) return gone_[i];
    bool gone = borrower.pid > 0 && is_alive(borrower.pid, borrower.stack) == Alive::kNo;
    if (known_ < kMost) {
        processes_[known_] = borrower.process;
        gone_[known_++] = gone;
    }
    return gone;
}

bool give_ticket(State& state, const Held& held, int* ticket) {
    Blob blob;
    if (!gives_tickets() || !can_be_lent(state, held.get()) || !begin_blob(&blob, state.ops->vendor)) return false;
    learn_devices(state);  // the process that imports it looks for the device by its uuid
    int made = make_ticket(blob_of(blob, held.get()->key));
    if (made >= 0) *ticket = made;
    return made >= 0;
}

// What came back by import is asked for outside the gate: its descriptor is with the daemon, and no driver is called.
bool lend(State& state, const Blob& blob, const Borrower& borrower, Lent* lent, int* descriptor) {
    bool kept;
    {
        GateEntry in_flight;
        Guard exporting(state.exporting);
        const Handle* handle = begin_loan(state, blob, borrower, lent);
        if (handle == nullptr) return false;
        kept = handle->kept;
        if (!kept) *descriptor = export_lent(state, *handle);
    }
    if (kept) *descriptor = ask_for_descriptor(lent->handle);
    if (*descriptor < 0) take_back_loan(state, blob_of(blob, lent->handle), borrower);
    return *descriptor >= 0;
}

void take_back_loan(State& state, const Blob& blob, const Borrower& borrower) {
    GateEntry in_flight;
    Handle* handle;
    bool unused;
    {
        Guard guard(state.lock);
        handle = state.handles.find(blob.id);
        if (blob.address != 0 || handle == nullptr) return;
        unused = end_loans(state, handle, 1, [&](const Borrower& each) { return each.process == borrower.process; });
    }
    if (unused) destroy_here(state, handle);
}

void forget_dead_borrowers(State& state) {
    if (!any_dead(state)) return;
    GateEntry in_flight;
    while (true) {
        Handle* handle;
        {
            Guard guard(state.lock);
            handle = take_abandoned(state);
        }
        if (handle == nullptr) return;
        destroy_here(state, handle);
    }
}

}  // namespace device
}  // namespace gcr
