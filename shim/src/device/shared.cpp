// SPDX-License-Identifier: Apache-2.0
#include "device/shared.h"

#include "device/loans.h"

namespace gcr {
namespace device {
namespace {

uint32_t accessors_of(const Handle& handle) {
    uint32_t devices = 0;
    for (const Mapping* mapping = handle.mappings; mapping != nullptr; mapping = mapping->sibling)
        devices |= mapping->read | mapping->write;
    return devices;
}

// False: the page is full.
bool has_room(SharedPage* page) {
    page->more = page->count == page->limit ? 1 : 0;
    return page->more == 0;
}

bool is_passed(SharedPage* page) {
    return page->passed++ < page->after;
}

wire::SharedRecord describe(const Handle& handle, uint32_t first_ordinal) {
    wire::SharedRecord record{};
    record.id = handle.key;
    record.size = handle.size;
    record.device = first_ordinal + static_cast<uint32_t>(handle.device);
    return record;
}

wire::SharedRecord foreign(const Handle& handle, uint32_t first_ordinal) {
    wire::SharedRecord record = describe(handle, first_ordinal);
    record.process = handle.foreign->process;
    record.there = handle.foreign->id;
    record.devices = accessors_of(handle) << first_ordinal;
    record.flags = wire::kSharedForeign;
    return record;
}

wire::SharedRecord lent(const Handle& handle, const Borrower& borrower, uint32_t first_ordinal) {
    wire::SharedRecord record = describe(handle, first_ordinal);
    record.process = borrower.process;
    record.pid = static_cast<uint32_t>(borrower.pid);
    return record;
}

// False: the page is full.
bool list(const Handle& handle, uint32_t first_ordinal, Census* census, SharedPage* page) {
    if (is_foreign(handle)) {
        if (!has_room(page)) return false;
        if (!is_passed(page)) page->records[page->count++] = foreign(handle, first_ordinal);
    }
    for (const Loan* loan = handle.loans; loan != nullptr; loan = loan->next) {
        if (!has_room(page)) return false;
        if (!is_passed(page) && !census->is_gone(loan->borrower))
            page->records[page->count++] = lent(handle, loan->borrower, first_ordinal);
    }
    return true;
}

}  // namespace

void list_shared(State& state, SharedPage* page) {
    if (!is_placed(state)) return;
    uint32_t first_ordinal = state.first_ordinal.load(std::memory_order_relaxed);
    Census census;
    Guard guard(state.lock);
    Handle* handle = state.handles.first();
    while (handle != nullptr && list(*handle, first_ordinal, &census, page)) handle = state.handles.after(handle);
}

}  // namespace device
}  // namespace gcr
