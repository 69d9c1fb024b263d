// SPDX-License-Identifier: Apache-2.0
#include "cuda/handover.h"

#include <unistd.h>

#include "cuda/driver.h"

namespace gcr {
namespace cuda {
namespace {

// A run of mappings without a gap, or one. The driver takes a whole run in one call; across two of the program's
// reservations it may refuse, so a refused run is tried piece by piece.
struct Run {
    size_t first;
    size_t count;
    CUdeviceptr address;
    uint64_t size;
};

using Mappings = Array<Mapping*>;

Run whole(const Mappings& mappings, size_t i) {
    return {i, 1, mappings[i]->key, mappings[i]->size};
}

bool same_access(const Mapping& a, const Mapping& b) {
    return a.read == b.read && a.write == b.write;
}
bool any_access(const Mapping&, const Mapping&) {
    return true;
}

Run run_from(const Mappings& mappings, size_t first, bool (*alike)(const Mapping&, const Mapping&)) {
    Run run = whole(mappings, first);
    while (first + run.count < mappings.size()) {
        const Mapping& next = *mappings[first + run.count];
        if (next.key != run.address + run.size || !alike(*mappings[first], next)) break;
        run.size += next.size;
        run.count++;
    }
    return run;
}

// Calls `act` for runs in address order; `done`: mappings that were acted on, all before the one that failed.
template <typename Act>
CUresult each_run(const Mappings& mappings, bool (*alike)(const Mapping&, const Mapping&), size_t* done, Act act) {
    for (*done = 0; *done < mappings.size();) {
        Run run = run_from(mappings, *done, alike);
        CUresult result = act(run);
        if (result != CUDA_SUCCESS && run.count > 1) result = act(run = whole(mappings, *done));
        if (result != CUDA_SUCCESS) return result;
        *done += run.count;
    }
    return CUDA_SUCCESS;
}

CUresult unmap(const Mappings& mappings, size_t* done) {
    return each_run(mappings, any_access, done, [](const Run& run) { return real::cuMemUnmap(run.address, run.size); });
}

CUresult give_access(const Mappings& mappings, size_t* done) {
    return each_run(mappings, same_access, done, [&](const Run& run) {
        const Mapping& mapping = *mappings[run.first];
        return set_access(run.address, run.size, mapping.read, mapping.write);
    });
}

CUresult map_one(const Mapping& mapping) {
    return real::cuMemMap(mapping.key, mapping.size, mapping.offset, mapping.handle->real, 0);
}

bool collect(bool (*wanted)(const Handle&), Mappings* mappings) {
    Guard guard(state.lock);
    for (Mapping* mapping = state.mappings.first(); mapping != nullptr; mapping = state.mappings.after(mapping))
        if (wanted(*mapping->handle) && !mappings->push(mapping)) return false;
    return true;
}

bool is_exported(const Handle& handle) {
    return handle.exported;
}
bool is_imported(const Handle& handle) {
    return handle.imported;
}

template <typename Visit>
void each_handle(Visit visit) {
    Guard guard(state.lock);
    for (Handle* handle = state.handles.first(); handle != nullptr; handle = state.handles.after(handle)) visit(handle);
}

uint64_t count_handles(bool (*matches)(const Handle&)) {
    uint64_t count = 0;
    each_handle([&](Handle* handle) { count += matches(*handle) ? 1 : 0; });
    return count;
}

// An unmap failed half way: what is unmapped goes back, so that nothing happened.
Failure undo_unmap(const Mappings& mappings, size_t unmapped, CUresult cause) {
    for (size_t i = 0; i < unmapped; i++) {
        CUresult result = map_one(*mappings[i]);
        if (result == CUDA_SUCCESS)
            result = set_access(mappings[i]->key, mappings[i]->size, mappings[i]->read, mappings[i]->write);
        if (result != CUDA_SUCCESS) return {wire::kDriver, result, "cuMemUnmap failed, and so did mapping again"};
    }
    return {wire::kDriver, cause, "cuMemUnmap failed; everything is mapped as before"};
}

void add(Tally* tally, const Handle& handle) {
    tally->handles++;
    tally->bytes += handle.size;
}

// The tables do not change while the gate is closed: no lock across the driver's calls.
void release_exported(Tally* tally) {
    for (Handle* handle = state.handles.first(); handle != nullptr; handle = state.handles.after(handle)) {
        if (!handle->exported) continue;
        handle->released = true;
        handle->imported = false;
        if (real::cuMemRelease(handle->real) == CUDA_SUCCESS) add(tally, *handle);  // else the count tells
    }
}

CUresult import_one(Handle* handle, int descriptor) {
    void* os_handle = reinterpret_cast<void*>(static_cast<intptr_t>(descriptor));
    CUresult result =
        real::cuMemImportFromShareableHandle(&handle->real, os_handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    if (result != CUDA_SUCCESS) return result;
    Mapping* mapping = handle->mappings;
    for (; mapping != nullptr && result == CUDA_SUCCESS; mapping = mapping->sibling) {
        result = map_one(*mapping);
        if (result != CUDA_SUCCESS) break;
    }
    if (result == CUDA_SUCCESS) {
        handle->imported = handle->kept = true;
        return result;
    }
    for (Mapping* done = handle->mappings; done != mapping; done = done->sibling)
        real::cuMemUnmap(done->key, done->size);
    real::cuMemRelease(handle->real);
    return result;
}

void discard_one(Handle* handle) {
    for (Mapping* mapping = handle->mappings; mapping != nullptr; mapping = mapping->sibling)
        real::cuMemUnmap(mapping->key, mapping->size);
    real::cuMemRelease(handle->real);
    handle->imported = false;
}

bool all_expected(const uint64_t* ids, uint32_t count, Handle** handles) {
    Guard guard(state.lock);
    for (uint32_t i = 0; i < count; i++) {
        handles[i] = state.handles.find(ids[i]);
        if (handles[i] == nullptr || !handles[i]->released || handles[i]->imported) return false;
        for (uint32_t j = 0; j < i; j++)
            if (ids[j] == ids[i]) return false;
    }
    return true;
}

void close_from(const int* descriptors, uint32_t first, uint32_t count) {
    for (uint32_t i = first; i < count; i++) close(descriptors[i]);
}

}  // namespace

Failure hand_over(Tally* tally) {
    // exportable memory that stays behind would make the driver's checkpoint impossible to restore (r580)
    if (count_handles([](const Handle& handle) { return coverable(handle) && !handle.exported; }) > 0)
        return {wire::kIncomplete, 0, "handles were allocated since the last export"};
    ScratchArray<Mapping*> mappings;
    if (!collect(is_exported, &mappings)) return {wire::kNoMemory, 0, "no host memory for the list of mappings"};
    PinnedContext context(0);
    CurrentContext scope(context.handle());
    size_t unmapped = 0;
    CUresult result = unmap(mappings, &unmapped);
    if (result != CUDA_SUCCESS) return undo_unmap(mappings, unmapped, result);
    release_exported(tally);
    return {};
}

Failure import_handles(const uint64_t* ids, const int* descriptors, uint32_t count, Tally* tally) {
    Handle* handles[wire::kMaxDescriptors];
    if (!all_expected(ids, count, handles)) {
        close_from(descriptors, 0, count);
        return {wire::kUnknownHandle, 0, "an id is not one that is waited for"};
    }
    PinnedContext context(0);
    CurrentContext scope(context.handle());
    for (uint32_t i = 0; i < count; i++) {
        CUresult result = import_one(handles[i], descriptors[i]);
        close(descriptors[i]);
        if (result == CUDA_SUCCESS) {
            add(tally, *handles[i]);
            continue;
        }
        close_from(descriptors, i + 1, count);
        while (i-- > 0) discard_one(handles[i]);
        return {wire::kDriver, result, "an import failed; nothing of this frame is kept"};
    }
    return {};
}

Failure map_imported(Tally* tally) {
    if (count_handles([](const Handle& handle) { return handle.released && !handle.imported; }) > 0)
        return {wire::kIncomplete, 0, "not every handle was imported"};
    ScratchArray<Mapping*> mappings;
    if (!collect(is_imported, &mappings)) return {wire::kNoMemory, 0, "no host memory for the list of mappings"};
    PinnedContext context(0);
    CurrentContext scope(context.handle());
    size_t done = 0;
    CUresult result = give_access(mappings, &done);
    if (result != CUDA_SUCCESS) return {wire::kDriver, result, "cuMemSetAccess"};
    each_handle([&](Handle* handle) {
        if (handle->imported) add(tally, *handle);
    });
    return {};
}

Failure discard_imported(Tally* tally) {
    ScratchArray<Mapping*> mappings;
    if (!collect(is_imported, &mappings)) return {wire::kNoMemory, 0, "no host memory for the list of mappings"};
    PinnedContext context(0);
    CurrentContext scope(context.handle());
    size_t done = 0;
    CUresult result = unmap(mappings, &done);
    if (result != CUDA_SUCCESS) return undo_unmap(mappings, done, result);
    for (Handle* handle = state.handles.first(); handle != nullptr; handle = state.handles.after(handle)) {
        if (!handle->imported) continue;
        handle->imported = false;
        if (real::cuMemRelease(handle->real) == CUDA_SUCCESS) add(tally, *handle);
    }
    return {};
}

void end_exports() {
    each_handle([](Handle* handle) { handle->exported = handle->released = handle->imported = false; });
    Guard guard(state.lock);
    state.exported = 0;
}

}  // namespace cuda
}  // namespace gcr
