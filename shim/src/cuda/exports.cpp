// SPDX-License-Identifier: Apache-2.0
//
// Exports: handles leave as descriptors while the program runs. The agent holds its batch lock meanwhile; a handle
// chosen here is marked under state.lock, so whoever frees it waits for the batch lock, and the daemon hears of it first.
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cuda/driver.h"
#include "cuda/handover.h"

namespace gcr {
namespace cuda {
namespace {

struct Chosen {
    uint32_t count = 0;
    CUmemGenericAllocationHandle real[wire::kMaxDescriptors];
};

Handle* next_coverable(uint64_t after_id) {
    Handle* handle = after_id == UINT64_MAX ? nullptr : state.handles.at_least(after_id + 1);
    while (handle != nullptr && !coverable(*handle)) handle = state.handles.after(handle);
    return handle;
}

uint32_t count_mappings(const Handle& handle) {
    uint32_t count = 0;
    for (const Mapping* mapping = handle.mappings; mapping != nullptr; mapping = mapping->sibling) count++;
    return count;
}

wire::HandleRecord describe(const Handle& handle) {
    wire::HandleRecord record{};
    record.id = handle.key;
    record.size = handle.size;
    record.device = static_cast<uint32_t>(handle.asked.location.id);
    record.mappings = count_mappings(handle);
    record.type = handle.asked.type;
    record.asked_types = handle.asked.requestedHandleTypes;
    record.compression = handle.asked.allocFlags.compressionType;
    record.rdma_capable = handle.asked.allocFlags.gpuDirectRDMACapable;
    record.usage = handle.asked.allocFlags.usage;
    record.flags = handle.kept ? wire::kHandleKept : 0;
    return record;
}

void mark_exported(Handle* handle, bool exported) {
    if (handle->exported == exported) return;
    handle->exported = exported;
    state.exported += exported ? 1 : -1ull;
}

void choose(uint64_t after_id, ExportBatch* batch, Chosen* chosen) {
    Guard guard(state.lock);
    batch->last_id = after_id;
    Handle* handle = next_coverable(after_id);
    for (; handle != nullptr && chosen->count < batch->limit; handle = next_coverable(handle->key)) {
        mark_exported(handle, true);
        batch->last_id = handle->key;
        batch->records[chosen->count] = describe(*handle);
        chosen->real[chosen->count++] = handle->real;
    }
    batch->more = handle != nullptr;
}

// The rest of the batch did not leave.
void unmark(const ExportBatch& batch, const Chosen& chosen) {
    Guard guard(state.lock);
    for (uint32_t i = batch.count; i < chosen.count; i++) {
        Handle* handle = state.handles.find(batch.records[i].id);
        if (handle != nullptr) mark_exported(handle, false);
    }
}

bool out_of_descriptors() {
    int probe = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (probe >= 0) close(probe);
    return probe < 0;
}

CUresult export_one(CUmemGenericAllocationHandle real, ExportBatch* batch) {
    int* descriptor = &batch->descriptors[batch->descriptor_count];
    CUresult result = real::cuMemExportToShareableHandle(descriptor, real, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    if (result != CUDA_SUCCESS) return result;
    fcntl(*descriptor, F_SETFD, FD_CLOEXEC);
    batch->descriptor_count++;
    return result;
}

}  // namespace

Failure export_after(uint64_t after_id, ExportBatch* batch) {
    Chosen chosen;
    batch->count = batch->descriptor_count = 0;
    choose(after_id, batch, &chosen);
    PinnedContext context(0);
    CurrentContext scope(context.handle());
    CUresult result = CUDA_SUCCESS;
    while (batch->count < chosen.count && result == CUDA_SUCCESS) {
        if ((batch->records[batch->count].flags & wire::kHandleKept) == 0)
            result = export_one(chosen.real[batch->count], batch);
        if (result == CUDA_SUCCESS) batch->count++;
    }
    if (batch->count == chosen.count) return {};
    unmark(*batch, chosen);
    if (batch->count == 0) {
        if (out_of_descriptors()) return {wire::kNoDescriptors, result, "no descriptor left to export with"};
        return {wire::kDriver, result, "cuMemExportToShareableHandle"};
    }
    batch->more = 1;  // what left is sent; the next request meets the same failure first
    batch->last_id = batch->records[batch->count - 1].id;
    return {};
}

void mappings_after(uint64_t cursor, MappingPage* page) {
    Guard guard(state.lock);
    Mapping* mapping = cursor == 0 ? state.mappings.first() : state.mappings.at_least(cursor + 1);
    for (; mapping != nullptr; mapping = state.mappings.after(mapping)) {
        if (!coverable(*mapping->handle)) continue;
        if (page->count == page->limit) break;
        page->records[page->count++] = {mapping->handle->key, mapping->key,  mapping->offset,
                                        mapping->size,        mapping->read, mapping->write};
        cursor = mapping->key;
    }
    page->cursor = cursor;
    page->more = mapping != nullptr;
}

}  // namespace cuda
}  // namespace gcr
