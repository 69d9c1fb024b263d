// SPDX-License-Identifier: Apache-2.0
//
// What a program may ask for and a device without the feature refuses: the names exist, as in the driver.
#include "front.h"

#define REFUSE(name, ...)                \
    SIM_API CUresult name(__VA_ARGS__) { \
        ENTER();                         \
        return CUDA_ERROR_NOT_SUPPORTED; \
    }

REFUSE(cuMemGetHandleForAddressRange, void* handle, CUdeviceptr pointer, size_t size, int type,
       unsigned long long flags)
REFUSE(cuMulticastAddDevice, CUmemGenericAllocationHandle handle, CUdevice device)
REFUSE(cuMulticastGetGranularity, size_t* granularity, const void* wanted, int option)
REFUSE(cuMemPoolExportToShareableHandle, void* handle, CUmemoryPool pool, int type, unsigned long long flags)
REFUSE(cuMemPoolImportFromShareableHandle, CUmemoryPool* pool, void* handle, int type, unsigned long long flags)
REFUSE(cuArrayCreate_v2, void** array, const void* wanted)
REFUSE(cuArray3DCreate_v2, void** array, const void* wanted)
REFUSE(cuMipmappedArrayCreate, void** array, const void* wanted, unsigned levels)

// Hints that change nothing a program could see.
#define HINT(name, ...)                  \
    SIM_API CUresult name(__VA_ARGS__) { \
        ENTER();                         \
        return CUDA_SUCCESS;             \
    }

HINT(cuProfilerStart, void)
HINT(cuProfilerStop, void)
HINT(cuFlushGPUDirectRDMAWrites, int target, int scope)
HINT(cuMemAdvise_v2, CUdeviceptr pointer, size_t size, int advice, CUmemLocation location)
HINT(cuMemPrefetchAsync_v2, CUdeviceptr pointer, size_t size, CUmemLocation location, unsigned flags, CUstream stream)
