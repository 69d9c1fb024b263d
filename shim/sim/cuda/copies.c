// SPDX-License-Identifier: Apache-2.0
//
// Copies and fills. Synchronous ones go through the default stream of their kind and are waited for.
#include "front.h"

enum side { HOST, DEVICE_MEMORY, ANY };

// The driver refuses what the device could not do: an allocation holds all the bytes, what the program mapped itself is
// mapped and may be accessed. A host pointer may be anything.
static bool right_side(const struct sim_context* context, CUdeviceptr pointer, size_t size, enum side side,
                       bool write) {
    const struct sim_allocation* allocation = sim_allocation_find(pointer);
    const struct sim_reservation* reservation = sim_reservation_find(pointer);
    if (side == HOST && reservation && !reservation->cpu_visible) return false;
    if (side == DEVICE_MEMORY && !reservation && !allocation) return false;
    if (!reservation || !reservation->internal) return sim_address_allows(context, pointer, size, write);
    return allocation && pointer + size <= allocation->range.start + allocation->range.size;
}

// That of the stream: with one of its own, the calling thread needs no context.
#define WORKING_CONTEXT(name, stream)                                \
    CUresult found_;                                                 \
    const struct sim_stream* works_ = front_stream(stream, &found_); \
    if (!works_) return found_;                                      \
    const struct sim_context* name = works_->context;                \
    if (name->error) return front_result(name->error)

static struct sim_rows flat(CUdeviceptr pointer) {
    return (struct sim_rows){(uintptr_t)pointer, 0};
}

static CUresult copy(CUdeviceptr to, enum side to_side, CUdeviceptr from, enum side from_side, size_t size,
                     CUstream stream, bool wait) {
    LOCK();
    WORKING_CONTEXT(context, stream);
    if (!size) return CUDA_SUCCESS;
    if (!to || !right_side(context, to, size, to_side, true)) return CUDA_ERROR_INVALID_VALUE;
    if (!from || !right_side(context, from, size, from_side, false)) return CUDA_ERROR_INVALID_VALUE;
    struct sim_operation* operation = sim_copy_operation(flat(to), flat(from), size, 1);
    return wait ? front_submit_and_wait(stream, operation) : front_submit(stream, operation);
}

#define HOST_ADDRESS(pointer) ((CUdeviceptr)(uintptr_t)(pointer))

// Each copy in its four forms: name, parameters, and the two sides.
#define COPY(base, suffix, to_type, to_side, to, from_type, from_side, from)                                      \
    SIM_API CUresult base##suffix(to_type destination, from_type source, size_t size) {                           \
        ENTER();                                                                                                  \
        return copy(to, to_side, from, from_side, size, NULL, true);                                              \
    }                                                                                                             \
    SIM_API CUresult base##suffix##_ptds(to_type destination, from_type source, size_t size) {                    \
        ENTER();                                                                                                  \
        return copy(to, to_side, from, from_side, size, SIM_STREAM_PER_THREAD_HANDLE, true);                      \
    }                                                                                                             \
    SIM_API CUresult base##Async##suffix(to_type destination, from_type source, size_t size, CUstream stream) {   \
        ENTER();                                                                                                  \
        return copy(to, to_side, from, from_side, size, stream, false);                                           \
    }                                                                                                             \
    SIM_API CUresult base##Async##suffix##_ptsz(to_type destination, from_type source, size_t size, CUstream s) { \
        ENTER();                                                                                                  \
        return copy(to, to_side, from, from_side, size, per_thread(s), false);                                    \
    }

COPY(cuMemcpy, , CUdeviceptr, ANY, destination, CUdeviceptr, ANY, source)
COPY(cuMemcpyHtoD, _v2, CUdeviceptr, DEVICE_MEMORY, destination, const void*, HOST, HOST_ADDRESS(source))
COPY(cuMemcpyDtoH, _v2, void*, HOST, HOST_ADDRESS(destination), CUdeviceptr, DEVICE_MEMORY, source)
COPY(cuMemcpyDtoD, _v2, CUdeviceptr, DEVICE_MEMORY, destination, CUdeviceptr, DEVICE_MEMORY, source)

// ---- between contexts ---------------------------------------------------------------------------------------------
SIM_API CUresult cuMemcpyPeer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
                              size_t size) {
    ENTER();
    return copy(to, DEVICE_MEMORY, from, DEVICE_MEMORY, size, NULL, true);
}

SIM_API CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
                                   size_t size, CUstream stream) {
    ENTER();
    return copy(to, DEVICE_MEMORY, from, DEVICE_MEMORY, size, stream, false);
}

// ---- two dimensions -----------------------------------------------------------------------------------------------
static bool source_rows(const CUDA_MEMCPY2D* copied, struct sim_rows* rows) {
    uintptr_t base = copied->srcMemoryType == MEMORY_HOST ? (uintptr_t)copied->srcHost : (uintptr_t)copied->srcDevice;
    size_t pitch = copied->srcPitch ? copied->srcPitch : copied->WidthInBytes;
    *rows = (struct sim_rows){base + copied->srcY * pitch + copied->srcXInBytes, pitch};
    return base && copied->srcMemoryType != MEMORY_ARRAY && pitch >= copied->WidthInBytes;
}

static bool target_rows(const CUDA_MEMCPY2D* copied, struct sim_rows* rows) {
    uintptr_t base = copied->dstMemoryType == MEMORY_HOST ? (uintptr_t)copied->dstHost : (uintptr_t)copied->dstDevice;
    size_t pitch = copied->dstPitch ? copied->dstPitch : copied->WidthInBytes;
    *rows = (struct sim_rows){base + copied->dstY * pitch + copied->dstXInBytes, pitch};
    return base && copied->dstMemoryType != MEMORY_ARRAY && pitch >= copied->WidthInBytes;
}

static CUresult copy_2d(const CUDA_MEMCPY2D* copied, CUstream stream, bool wait) {
    struct sim_rows to, from;
    if (!copied || !source_rows(copied, &from) || !target_rows(copied, &to)) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    WORKING_CONTEXT(context, stream);
    (void)context;
    struct sim_operation* operation = sim_copy_operation(to, from, copied->WidthInBytes, copied->Height);
    return wait ? front_submit_and_wait(stream, operation) : front_submit(stream, operation);
}

SIM_API CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D* copied) {
    ENTER();
    return copy_2d(copied, NULL, true);
}

SIM_API CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D* copied) {
    return cuMemcpy2D_v2(copied);
}

SIM_API CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D* copied, CUstream stream) {
    ENTER();
    return copy_2d(copied, stream, false);
}

SIM_API CUresult cuMemcpy2D_v2_ptds(const CUDA_MEMCPY2D* copied) {
    ENTER();
    return copy_2d(copied, SIM_STREAM_PER_THREAD_HANDLE, true);
}

SIM_API CUresult cuMemcpy2DAsync_v2_ptsz(const CUDA_MEMCPY2D* copied, CUstream stream) {
    return cuMemcpy2DAsync_v2(copied, per_thread(stream));
}

// ---- fills --------------------------------------------------------------------------------------------------------
static CUresult fill(CUdeviceptr pointer, size_t pitch, uint32_t value, unsigned unit, size_t width, size_t height,
                     CUstream stream, bool wait) {
    LOCK();
    WORKING_CONTEXT(context, stream);
    if (!width || !height) return CUDA_SUCCESS;
    size_t span = pitch * (height - 1) + width * unit;
    if (pointer % unit || (height > 1 && pitch < width * unit)) return CUDA_ERROR_INVALID_VALUE;
    if (!right_side(context, pointer, span, DEVICE_MEMORY, true)) return CUDA_ERROR_INVALID_VALUE;
    struct sim_operation* operation =
        sim_fill_operation((struct sim_rows){(uintptr_t)pointer, pitch}, value, unit, width * unit, height);
    return wait ? front_submit_and_wait(stream, operation) : front_submit(stream, operation);
}

#define FILL(bits, type)                                                                                            \
    SIM_API CUresult cuMemsetD##bits##_v2(CUdeviceptr p, type value, size_t count) {                                \
        ENTER();                                                                                                    \
        return fill(p, 0, value, bits / 8, count, 1, NULL, true);                                                   \
    }                                                                                                               \
    SIM_API CUresult cuMemsetD##bits##_v2_ptds(CUdeviceptr p, type value, size_t count) {                           \
        ENTER();                                                                                                    \
        return fill(p, 0, value, bits / 8, count, 1, SIM_STREAM_PER_THREAD_HANDLE, true);                           \
    }                                                                                                               \
    SIM_API CUresult cuMemsetD##bits##Async(CUdeviceptr p, type value, size_t count, CUstream stream) {             \
        ENTER();                                                                                                    \
        return fill(p, 0, value, bits / 8, count, 1, stream, false);                                                \
    }                                                                                                               \
    SIM_API CUresult cuMemsetD##bits##Async_ptsz(CUdeviceptr p, type value, size_t count, CUstream s) {             \
        ENTER();                                                                                                    \
        return fill(p, 0, value, bits / 8, count, 1, per_thread(s), false);                                         \
    }                                                                                                               \
    SIM_API CUresult cuMemsetD2D##bits##_v2(CUdeviceptr p, size_t pitch, type value, size_t width, size_t height) { \
        ENTER();                                                                                                    \
        return fill(p, pitch, value, bits / 8, width, height, NULL, true);                                          \
    }                                                                                                               \
    SIM_API CUresult cuMemsetD2D##bits##Async(CUdeviceptr p, size_t pitch, type value, size_t width, size_t height, \
                                              CUstream stream) {                                                    \
        ENTER();                                                                                                    \
        return fill(p, pitch, value, bits / 8, width, height, stream, false);                                       \
    }

FILL(8, uint8_t)
FILL(16, uint16_t)
FILL(32, uint32_t)
