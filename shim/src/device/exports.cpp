// SPDX-License-Identifier: Apache-2.0
//
// Exports: handles leave as descriptors while the program runs. The agent holds its batch lock meanwhile; a handle
// chosen here is marked under state.lock, so a thread that frees it waits for the batch lock, and the daemon hears of
// it first.
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "device/devices.h"
#include "device/handover.h"

namespace gcr {
namespace device {
namespace {

// What is appended to a batch: its records up to `end`, and the driver's handle of each.
struct Chosen {
    uint32_t end;
    uint64_t real[wire::kMaxDescriptors];
};

Handle* next_coverable(const State& state, uint64_t after_id) {
    Handle* handle = after_id == UINT64_MAX ? nullptr : state.handles.at_least(after_id + 1);
    while (handle != nullptr && !coverable(*handle)) handle = state.handles.after(handle);
    return handle;
}

uint32_t count_mappings(const Handle& handle) {
    uint32_t count = 0;
    for (const Mapping* mapping = handle.mappings; mapping != nullptr; mapping = mapping->sibling) count++;
    return count;
}

wire::HandleRecord describe(const State& state, const Handle& handle) {
    wire::HandleRecord record{};
    record.id = handle.key;
    record.size = handle.size;
    record.device = state.first_ordinal.load(std::memory_order_relaxed) + static_cast<uint32_t>(handle.device);
    record.mappings = count_mappings(handle);
    record.flags = handle.kept ? wire::kHandleKept : 0;
    if (!exports(state, handle.device)) record.flags |= wire::kHandleUnexportable;
    state.ops->describe(handle.asked, &record);
    return record;
}

void choose(State& state, uint64_t after_id, ExportBatch* batch, Chosen* chosen) {
    Guard guard(state.lock);
    Handle* handle = next_coverable(state, after_id);
    for (; handle != nullptr && chosen->end < batch->limit; handle = next_coverable(state, handle->key)) {
        handle->exported = true;
        batch->records[chosen->end] = describe(state, *handle);
        chosen->real[chosen->end++] = handle->real;
    }
    batch->more = handle != nullptr;
}

// The rest of what was chosen did not leave.
void unmark(State& state, const ExportBatch& batch, const Chosen& chosen) {
    Guard guard(state.lock);
    for (uint32_t i = batch.count; i < chosen.end; i++) {
        Handle* handle = state.handles.find(batch.records[i].id);
        if (handle != nullptr) handle->exported = false;
    }
}

bool out_of_descriptors() {
    int probe = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (probe >= 0) close_descriptor(probe);
    return probe < 0;
}

Result export_one(const State& state, uint64_t real, ExportBatch* batch) {
    int* descriptor = &batch->descriptors[batch->descriptor_count];
    Result result = state.ops->export_fd(real, descriptor);
    if (result != kSuccess) return result;
    fcntl(*descriptor, F_SETFD, FD_CLOEXEC);
    batch->descriptor_count++;
    return result;
}

wire::MappingRecord describe(const Mapping& mapping, uint32_t first_ordinal) {
    return {mapping.handle->key,           mapping.key, mapping.offset, mapping.size, mapping.read << first_ordinal,
            mapping.write << first_ordinal};
}

}  // namespace

Failure export_after(State& state, uint64_t after_id, ExportBatch* batch) {
    if (!is_placed(state)) return {};
    Chosen chosen;
    chosen.end = batch->count;
    choose(state, after_id, batch, &chosen);
    Current current(state);
    Result result = kSuccess;
    while (batch->count < chosen.end && result == kSuccess) {
        if (batch->records[batch->count].flags == 0) result = export_one(state, chosen.real[batch->count], batch);
        if (result == kSuccess) batch->count++;
    }
    if (result == kSuccess) return {};
    unmark(state, *batch, chosen);
    if (out_of_descriptors()) return {wire::kNoDescriptors, result, "no descriptor left to export with"};
    return {wire::kDriver, result, "failed", state.ops->names.export_fd};
}

void mappings_after(State& state, uint64_t address, MappingPage* page) {
    if (!is_placed(state)) return;
    uint32_t first_ordinal = state.first_ordinal.load(std::memory_order_relaxed);
    Guard guard(state.lock);
    Mapping* mapping = state.mappings.at_least(address);
    for (; mapping != nullptr; mapping = state.mappings.after(mapping)) {
        if (!coverable(*mapping->handle)) continue;
        if (page->count == page->limit) break;
        page->records[page->count++] = describe(*mapping, first_ordinal);
    }
    page->more = mapping != nullptr;
}

}  // namespace device
}  // namespace gcr
