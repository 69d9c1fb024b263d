// SPDX-License-Identifier: Apache-2.0
//
// Memory, copies, kernels and events of the simulated acme driver.
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "front.h"
#include "module.h"

// ---- plain allocations ----------------------------------------------------------------------------------------------
ACME_API acmeResult acmeAlloc(uint64_t* address, uint64_t size) {
    ENTER();
    REQUIRE(address && size);
    CONTEXT(context);
    struct sim_allocation* made;
    sim_result result = sim_allocate(context, size, SIM_ALLOCATION_DEVICE, &made);
    if (!result) *address = made->range.start;
    return front_result(result);
}

static acmeResult free_at(uintptr_t address, enum sim_allocation_kind kind) {
    struct sim_allocation* found = sim_allocation_find(address);
    REQUIRE(found && found->kind == kind && found->range.start == address);
    sim_result result = sim_context_synchronize(found->context);
    found = sim_allocation_find(address);  // the wait gave the lock up
    if (found) sim_allocation_free(found);
    return front_result(result);
}

ACME_API acmeResult acmeFree(uint64_t address) {
    ENTER();
    return free_at(address, SIM_ALLOCATION_DEVICE);
}

ACME_API acmeResult acmePin(void* memory, uint64_t size) {
    ENTER();
    CONTEXT(context);
    return front_result(sim_register_host(context, (uintptr_t)memory, size, 0));
}

ACME_API acmeResult acmeUnpin(void* memory) {
    ENTER();
    return free_at((uintptr_t)memory, SIM_ALLOCATION_REGISTERED);
}

// ---- physical memory and addresses ----------------------------------------------------------------------------------
ACME_API acmeResult acmeGranularity(uint64_t* size) {
    ENTER();
    REQUIRE(size);
    *size = sim_machine_config()->granularity;
    return ACME_OK;
}

ACME_API acmeResult acmeReserve(uint64_t size, uint64_t wanted, uint64_t* address) {
    ENTER();
    REQUIRE(address);
    struct sim_reservation* made;
    sim_result result = sim_address_reserve(size, 0, wanted, &made);
    if (!result) *address = made->range.start;
    return front_result(result);
}

ACME_API acmeResult acmeUnreserve(uint64_t address, uint64_t size) {
    ENTER();
    return front_result(sim_address_free(address, size));
}

ACME_API acmeResult acmeCreate(int device, uint64_t size, uint64_t* handle) {
    ENTER();
    DEVICE(device);
    REQUIRE(handle && size && size % sim_machine_config()->granularity == 0);
    struct sim_physical* made;
    sim_result result = sim_physical_create((unsigned)device, size, &made);
    if (result) return front_result(result);
    *handle = made->id_range.start;
    return ACME_OK;
}

#define HANDLE(name, handle)                               \
    struct sim_physical* name = sim_physical_find(handle); \
    REQUIRE(name)

ACME_API acmeResult acmeRelease(uint64_t handle) {
    ENTER();
    HANDLE(physical, handle);
    sim_physical_release_handle(physical);
    return ACME_OK;
}

ACME_API acmeResult acmeExport(uint64_t handle, int* descriptor) {
    ENTER();
    REQUIRE(descriptor);
    HANDLE(physical, handle);
    physical->exportable = true;  // acme's need not be made so
    return front_result(sim_physical_export(physical, descriptor));
}

ACME_API acmeResult acmeImport(int descriptor, uint64_t* handle) {
    ENTER();
    REQUIRE(handle);
    struct sim_physical* made;
    sim_result result = sim_physical_import(descriptor, &made);
    if (!result) *handle = made->id_range.start;
    return front_result(result);
}

ACME_API acmeResult acmeMap(uint64_t address, uint64_t size, uint64_t handle) {
    ENTER();
    HANDLE(physical, handle);
    REQUIRE(size == physical->size);
    sim_result result = sim_address_map(address, size, 0, physical);
    if (!result) result = sim_address_set_access(address, size, physical->device, SIM_ACCESS_WRITE);
    return front_result(result);
}

ACME_API acmeResult acmeUnmap(uint64_t address, uint64_t size) {
    ENTER();
    return front_result(sim_address_unmap(address, size));
}

// ---- streams, copies, kernels ---------------------------------------------------------------------------------------
static struct sim_stream* stream_of(void* handle) {
    struct sim_context* context;
    if (handle) return sim_object_is_locked(handle, SIM_STREAM) ? handle : NULL;
    return sim_context_usable(&context) ? NULL : sim_stream_legacy(context);
}
#define STREAM(name, handle)                     \
    struct sim_stream* name = stream_of(handle); \
    REQUIRE(name)

static struct sim_operation* copy_of(uint64_t to, uint64_t from, uint64_t size) {
    return sim_copy_operation((struct sim_rows){to, 0}, (struct sim_rows){from, 0}, size, 1);
}

ACME_API acmeResult acmeStreamCreate(void** stream) {
    ENTER();
    REQUIRE(stream);
    CONTEXT(context);
    return front_result(sim_stream_create(context, 0, true, 0, (struct sim_stream**)stream));
}

ACME_API acmeResult acmeStreamDestroy(void* handle) {
    ENTER();
    REQUIRE(handle && sim_object_is_locked(handle, SIM_STREAM));
    return front_result(sim_stream_destroy(handle));
}

ACME_API acmeResult acmeStreamQuery(void* handle) {
    ENTER();
    STREAM(stream, handle);
    return sim_stream_idle_locked(stream) ? ACME_OK : ACME_NOT_READY;
}

// Beside all streams, on the device whose memory it is, whatever the thread's device.
ACME_API acmeResult acmeCopy(uint64_t to, uint64_t from, uint64_t size) {
    ENTER();
    const struct sim_mapping* mapping = sim_mapping_find(to);
    if (!mapping) mapping = sim_mapping_find(from);
    REQUIRE(mapping && size);
    struct sim_context* context = sim_primary_of(mapping->physical->device);
    REQUIRE(context && context->alive);
    struct sim_stream* stream = sim_stream_per_thread(context);
    REQUIRE(stream);
    stream->non_blocking = true;
    sim_result result = sim_submit_locked(stream, copy_of(to, from, size));
    return front_result(result ? result : sim_stream_synchronize_locked(stream));
}

ACME_API acmeResult acmeCopyAsync(uint64_t to, uint64_t from, uint64_t size, void* handle) {
    ENTER();
    STREAM(stream, handle);
    return front_result(sim_submit_locked(stream, copy_of(to, from, size)));
}

// Kernels come with the driver: kernels.so beside it.
static sim_result load_kernels(struct sim_module** kernels) {
    static struct sim_module* loaded;
    Dl_info self;
    char path[PATH_MAX];
    if (!loaded && dladdr((void*)acmeInit, &self)) {
        const char* slash = strrchr(self.dli_fname, '/');
        int folder = slash ? (int)(slash - self.dli_fname) : 0;
        snprintf(path, sizeof path, "%.*s/kernels.so", folder, self.dli_fname);
        sim_result result = sim_module_load_file(NULL, path, &loaded);
        if (result) return result;
    }
    *kernels = loaded;
    return loaded ? SIM_OK : SIM_FILE_NOT_FOUND;
}

ACME_API acmeResult acmeLaunch(const char* kernel, const void* arguments, size_t size, void* handle) {
    ENTER();
    REQUIRE(kernel && size <= SIM_MAX_PARAM_BYTES);
    STREAM(stream, handle);
    struct sim_module* kernels;
    struct sim_function* function;
    sim_result result = load_kernels(&kernels);
    if (!result) result = sim_module_function(kernels, kernel, &function);
    if (result) return front_result(result);
    struct sim_grid one = {{1, 1, 1}, {1, 1, 1}};
    return front_result(sim_submit_locked(stream, sim_kernel_operation(function, &one, NULL, arguments)));
}

// ---- events -----------------------------------------------------------------------------------------------------------
ACME_API acmeResult acmeEventRecord(void* handle, void** out) {
    ENTER();
    REQUIRE(out);
    STREAM(stream, handle);
    struct sim_event* event;
    sim_result result = sim_event_create(stream->context, 0, &event);
    if (!result) result = sim_event_record(event, stream);
    if (!result) *out = event;
    return front_result(result);
}

#define EVENT(name, handle)          \
    struct sim_event* name = handle; \
    REQUIRE(name&& sim_object_is_locked(name, SIM_EVENT))

ACME_API acmeResult acmeEventQuery(void* handle) {
    ENTER();
    EVENT(event, handle);
    if (event->context->error) return front_result(event->context->error);
    return sim_event_done(event) ? ACME_OK : ACME_NOT_READY;
}

ACME_API acmeResult acmeEventSeconds(void* from, void* to, double* seconds) {
    ENTER();
    EVENT(first, from);
    EVENT(last, to);
    REQUIRE(seconds);
    if (!sim_event_done(first) || !sim_event_done(last)) return ACME_NOT_READY;
    *seconds = (double)(last->time_ns - first->time_ns) * 1e-9;
    return ACME_OK;
}

ACME_API acmeResult acmeEventDestroy(void* handle) {
    ENTER();
    EVENT(event, handle);
    sim_event_destroy(event);
    return ACME_OK;
}
