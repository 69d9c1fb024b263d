// SPDX-License-Identifier: Apache-2.0
//
// Copies and fills. The synchronous ones run beside the streams, as the runtime's do: they order with none.
#include "front.h"

enum side { HOST, DEVICE_MEMORY, ANY };

// The runtime refuses what the device could not do: the bytes may be accessed, and an allocation holds all of them.
static bool right_side(const struct sim_context* context, const void* pointer, size_t size, enum side side,
                       bool write) {
    uintptr_t address = (uintptr_t)pointer;
    const struct sim_reservation* where = sim_reservation_find(address);
    if (side == HOST && where) return false;
    if (side == DEVICE_MEMORY && !where) return false;
    if (!sim_address_allows(context, address, size, write)) return false;
    if (!where || !where->internal) return true;
    const struct sim_allocation* holder = sim_allocation_find(address);
    return holder && address + size <= holder->range.start + holder->range.size;
}

static bool sides_of(aclrtMemcpyKind kind, enum side* to, enum side* from) {
    static const enum side table[][2] = {
        [ACL_MEMCPY_HOST_TO_HOST] = {HOST, HOST},
        [ACL_MEMCPY_HOST_TO_DEVICE] = {DEVICE_MEMORY, HOST},
        [ACL_MEMCPY_DEVICE_TO_HOST] = {HOST, DEVICE_MEMORY},
        [ACL_MEMCPY_DEVICE_TO_DEVICE] = {DEVICE_MEMORY, DEVICE_MEMORY},
        [ACL_MEMCPY_DEFAULT] = {ANY, ANY},
    };
    if (kind < 0 || kind > ACL_MEMCPY_DEFAULT) return false;
    *to = table[kind][0];
    *from = table[kind][1];
    return true;
}

struct sim_stream* front_copy_stream(struct sim_context* context) {
    struct sim_stream* stream = sim_stream_per_thread(context);
    if (stream) stream->non_blocking = true;
    return stream;
}

static struct sim_rows flat(const void* pointer) {
    return (struct sim_rows){(uintptr_t)pointer, 0};
}

// With sim_lock.
static aclError perform(struct sim_stream* stream, struct sim_operation* operation, bool wait) {
    sim_result result = sim_submit_locked(stream, operation);
    if (!result && wait) result = sim_stream_synchronize_locked(stream);
    return front_result(result);
}

static aclError copy(struct sim_stream* stream, void* to, size_t room, const void* from, size_t size,
                     aclrtMemcpyKind kind, bool wait) {
    enum side to_side, from_side;
    REQUIRE(to && from && size && size <= room && sides_of(kind, &to_side, &from_side));
    REQUIRE(right_side(stream->context, to, size, to_side, true));
    REQUIRE(right_side(stream->context, from, size, from_side, false));
    return perform(stream, sim_copy_operation(flat(to), flat(from), size, 1), wait);
}

static aclError fill(struct sim_stream* stream, void* to, size_t room, int32_t value, size_t size, bool wait) {
    REQUIRE(to && size && size <= room && right_side(stream->context, to, size, ANY, true));
    uint32_t byte = (uint8_t)value;
    return perform(stream, sim_fill_operation(flat(to), byte, 1, size, 1), wait);
}

// The calling thread's stream for synchronous copies, or return.
#define COPY_STREAM(name)                                  \
    CONTEXT(current_);                                     \
    struct sim_stream* name = front_copy_stream(current_); \
    if (!name) return ACL_ERROR_RT_MEMORY_ALLOCATION

#define STREAM(name, handle)                                 \
    aclError found_;                                         \
    struct sim_stream* name = front_stream(handle, &found_); \
    if (!name) return found_

SIM_API aclError aclrtMemcpy(void* to, size_t room, const void* from, size_t size, aclrtMemcpyKind kind) {
    ENTER();
    LOCK();
    COPY_STREAM(stream);
    return copy(stream, to, room, from, size, kind, true);
}

SIM_API aclError aclrtMemcpyAsync(void* to, size_t room, const void* from, size_t size, aclrtMemcpyKind kind,
                                  aclrtStream handle) {
    ENTER();
    LOCK();
    STREAM(stream, handle);
    return copy(stream, to, room, from, size, kind, false);
}

SIM_API aclError aclrtMemset(void* to, size_t room, int32_t value, size_t size) {
    ENTER();
    LOCK();
    COPY_STREAM(stream);
    return fill(stream, to, room, value, size, true);
}

SIM_API aclError aclrtMemsetAsync(void* to, size_t room, int32_t value, size_t size, aclrtStream handle) {
    ENTER();
    LOCK();
    STREAM(stream, handle);
    return fill(stream, to, room, value, size, false);
}
