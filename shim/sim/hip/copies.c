// SPDX-License-Identifier: Apache-2.0
//
// Copies and fills. Synchronous ones go through the default stream of their kind and are waited for.
#include "front.h"

static uintptr_t number(const void* pointer) {
    return (uintptr_t)pointer;
}

static bool valid_kind(hipMemcpyKind kind) {
    return kind <= hipMemcpyDefault || kind == hipMemcpyDeviceToDeviceNoCU;
}

// The runtime refuses what it can see is wrong: an allocation holds all the bytes, what the program mapped itself may
// be accessed. A host pointer may be anything, whatever the kind says.
static bool may_reach(const struct sim_context* context, uintptr_t pointer, size_t size, bool write) {
    const struct sim_reservation* reservation = sim_reservation_find(pointer);
    if (!pointer) return false;
    if (!reservation || !reservation->internal) return sim_address_allows(context, pointer, size, write);
    const struct sim_allocation* allocation = sim_allocation_find(pointer);
    return allocation && pointer + size <= allocation->range.start + allocation->range.size;
}

// Plain memory of any device is copied without peer access being enabled: each side as its own device reaches it.
static const struct sim_context* side(uintptr_t pointer) {
    const struct sim_allocation* found = sim_allocation_find(pointer);
    return found && found->kind <= SIM_ALLOCATION_IMPORTED ? sim_primary_of(found->device) : NULL;
}

static hipError_t copy_rows(struct sim_rows to, struct sim_rows from, size_t width, size_t height, hipStream_t handle,
                            bool wait) {
    LOCK();
    STREAM(stream, handle);
    if (!width || !height) return hipSuccess;
    size_t to_size = to.pitch * (height - 1) + width, from_size = from.pitch * (height - 1) + width;
    if (!may_reach(stream->context, to.address, to_size, true)) return hipErrorInvalidValue;
    if (!may_reach(stream->context, from.address, from_size, false)) return hipErrorInvalidValue;
    struct sim_operation* operation = sim_copy_operation(to, from, width, height);
    if (operation) sim_copy_between(operation, side(to.address), side(from.address));
    return wait ? front_submit_and_wait(handle, operation) : front_submit(handle, operation);
}

static hipError_t copy(void* to, const void* from, size_t size, hipMemcpyKind kind, hipStream_t stream, bool wait) {
    if (!valid_kind(kind)) return hipErrorInvalidMemcpyDirection;
    return copy_rows((struct sim_rows){number(to), size}, (struct sim_rows){number(from), size}, size, 1, stream, wait);
}

hipError_t sim_hipMemcpy(void* to, const void* from, size_t size, hipMemcpyKind kind) {
    return copy(to, from, size, kind, NULL, true);
}

hipError_t sim_hipMemcpy_spt(void* to, const void* from, size_t size, hipMemcpyKind kind) {
    return copy(to, from, size, kind, front_per_thread(NULL), true);
}

hipError_t sim_hipMemcpyAsync(void* to, const void* from, size_t size, hipMemcpyKind kind, hipStream_t stream) {
    return copy(to, from, size, kind, stream, false);
}

hipError_t sim_hipMemcpyAsync_spt(void* to, const void* from, size_t size, hipMemcpyKind kind, hipStream_t stream) {
    return copy(to, from, size, kind, front_per_thread(stream), false);
}

hipError_t sim_hipMemcpyWithStream(void* to, const void* from, size_t size, hipMemcpyKind kind, hipStream_t stream) {
    return copy(to, from, size, kind, stream, true);
}

hipError_t sim_hipMemcpyHtoD(hipDeviceptr_t to, const void* from, size_t size) {
    return hipMemcpy(to, from, size, hipMemcpyHostToDevice);
}

hipError_t sim_hipMemcpyDtoH(void* to, hipDeviceptr_t from, size_t size) {
    return hipMemcpy(to, from, size, hipMemcpyDeviceToHost);
}

hipError_t sim_hipMemcpyDtoD(hipDeviceptr_t to, hipDeviceptr_t from, size_t size) {
    return hipMemcpy(to, from, size, hipMemcpyDeviceToDevice);
}

hipError_t sim_hipMemcpyHtoDAsync(hipDeviceptr_t to, const void* from, size_t size, hipStream_t stream) {
    return hipMemcpyAsync(to, from, size, hipMemcpyHostToDevice, stream);
}

hipError_t sim_hipMemcpyDtoHAsync(void* to, hipDeviceptr_t from, size_t size, hipStream_t stream) {
    return hipMemcpyAsync(to, from, size, hipMemcpyDeviceToHost, stream);
}

hipError_t sim_hipMemcpyDtoDAsync(hipDeviceptr_t to, hipDeviceptr_t from, size_t size, hipStream_t stream) {
    return hipMemcpyAsync(to, from, size, hipMemcpyDeviceToDevice, stream);
}

// ---- between devices ----------------------------------------------------------------------------------------------
hipError_t sim_hipMemcpyPeer(void* to, int to_device, const void* from, int from_device, size_t size) {
    DEVICE(to_device);
    DEVICE(from_device);
    return hipMemcpy(to, from, size, hipMemcpyDeviceToDevice);
}

hipError_t sim_hipMemcpyPeerAsync(void* to, int to_device, const void* from, int from_device, size_t size,
                                  hipStream_t stream) {
    DEVICE(to_device);
    DEVICE(from_device);
    return hipMemcpyAsync(to, from, size, hipMemcpyDeviceToDevice, stream);
}

// ---- two dimensions -----------------------------------------------------------------------------------------------
static hipError_t copy_2d(struct sim_rows to, struct sim_rows from, size_t width, size_t height, hipMemcpyKind kind,
                          hipStream_t stream, bool wait) {
    if (!valid_kind(kind)) return hipErrorInvalidMemcpyDirection;
    if (to.pitch < width || from.pitch < width) return hipErrorInvalidPitchValue;
    return copy_rows(to, from, width, height, stream, wait);
}

hipError_t sim_hipMemcpy2D(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height,
                           hipMemcpyKind kind) {
    return copy_2d((struct sim_rows){number(to), to_pitch}, (struct sim_rows){number(from), from_pitch}, width, height,
                   kind, NULL, true);
}

hipError_t sim_hipMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                                size_t height, hipMemcpyKind kind, hipStream_t stream) {
    return copy_2d((struct sim_rows){number(to), to_pitch}, (struct sim_rows){number(from), from_pitch}, width, height,
                   kind, stream, false);
}

static struct sim_rows rows_at(const void* host, const void* device, hipMemoryType type, size_t pitch, size_t x,
                               size_t y) {
    uintptr_t base = number(type == hipMemoryTypeHost ? host : device);
    return (struct sim_rows){base ? base + y * pitch + x : 0, pitch};
}

static hipError_t copy_described(const hip_Memcpy2D* c, hipStream_t stream, bool wait) {
    if (!c || c->srcMemoryType == hipMemoryTypeArray || c->dstMemoryType == hipMemoryTypeArray)
        return hipErrorInvalidValue;
    size_t to_pitch = c->dstPitch ? c->dstPitch : c->WidthInBytes;
    size_t from_pitch = c->srcPitch ? c->srcPitch : c->WidthInBytes;
    struct sim_rows to = rows_at(c->dstHost, c->dstDevice, c->dstMemoryType, to_pitch, c->dstXInBytes, c->dstY);
    struct sim_rows from = rows_at(c->srcHost, c->srcDevice, c->srcMemoryType, from_pitch, c->srcXInBytes, c->srcY);
    return copy_2d(to, from, c->WidthInBytes, c->Height, hipMemcpyDefault, stream, wait);
}

hipError_t sim_hipMemcpyParam2D(const hip_Memcpy2D* copied) {
    return copy_described(copied, NULL, true);
}

hipError_t sim_hipMemcpyParam2DAsync(const hip_Memcpy2D* copied, hipStream_t stream) {
    return copy_described(copied, stream, false);
}

// ---- fills --------------------------------------------------------------------------------------------------------
struct fill {
    void* to;
    size_t pitch;
    uint32_t value;
    unsigned unit;  // bytes
    size_t width;   // bytes
    size_t height;
};

static hipError_t fill(struct fill f, hipStream_t handle, bool wait) {
    LOCK();
    STREAM(stream, handle);
    if (!f.width || !f.height) return hipSuccess;
    if (number(f.to) % f.unit) return hipErrorInvalidValue;
    if (f.height > 1 && f.pitch < f.width) return hipErrorInvalidPitchValue;
    size_t span = f.pitch * (f.height - 1) + f.width;
    if (!may_reach(stream->context, number(f.to), span, true)) return hipErrorInvalidValue;
    struct sim_operation* operation =
        sim_fill_operation((struct sim_rows){number(f.to), f.pitch}, f.value, f.unit, f.width, f.height);
    return wait ? front_submit_and_wait(handle, operation) : front_submit(handle, operation);
}

static struct fill line(void* to, uint32_t value, unsigned unit, size_t count) {
    return (struct fill){to, 0, value, unit, count * unit, 1};
}

hipError_t sim_hipMemset(void* to, int value, size_t size) {
    return fill(line(to, (uint8_t)value, 1, size), NULL, true);
}

hipError_t sim_hipMemset_spt(void* to, int value, size_t size) {
    return fill(line(to, (uint8_t)value, 1, size), front_per_thread(NULL), true);
}

hipError_t sim_hipMemsetAsync(void* to, int value, size_t size, hipStream_t stream) {
    return fill(line(to, (uint8_t)value, 1, size), stream, false);
}

hipError_t sim_hipMemsetAsync_spt(void* to, int value, size_t size, hipStream_t stream) {
    return fill(line(to, (uint8_t)value, 1, size), front_per_thread(stream), false);
}

#define FILL(bits, type)                                                                                      \
    hipError_t sim_hipMemsetD##bits(hipDeviceptr_t to, type value, size_t count) {                            \
        return fill(line(to, (uint32_t)value, bits / 8, count), NULL, true);                                  \
    }                                                                                                         \
    hipError_t sim_hipMemsetD##bits##Async(hipDeviceptr_t to, type value, size_t count, hipStream_t stream) { \
        return fill(line(to, (uint32_t)value, bits / 8, count), stream, false);                               \
    }

FILL(8, unsigned char)
FILL(16, unsigned short)
FILL(32, int)

hipError_t sim_hipMemset2D(void* to, size_t pitch, int value, size_t width, size_t height) {
    return fill((struct fill){to, pitch, (uint8_t)value, 1, width, height}, NULL, true);
}

hipError_t sim_hipMemset2DAsync(void* to, size_t pitch, int value, size_t width, size_t height, hipStream_t stream) {
    return fill((struct fill){to, pitch, (uint8_t)value, 1, width, height}, stream, false);
}
