// SPDX-License-Identifier: Apache-2.0
//
// The part of the CUDA driver's ABI that the simulated driver speaks, declared by ourselves. Checked against the
// vendor's header where one is installed: tests/native/sim.
#ifndef GCR_SIM_CUDA_ABI_H
#define GCR_SIM_CUDA_ABI_H

#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef unsigned long long CUmemGenericAllocationHandle;
typedef struct sim_context* CUcontext;
typedef struct sim_stream* CUstream;
typedef struct sim_event* CUevent;
typedef struct sim_module* CUmodule;
typedef struct sim_module* CUlibrary;
typedef struct sim_function* CUfunction;
typedef struct sim_function* CUkernel;
typedef struct sim_graph* CUgraph;
typedef struct sim_graph_exec* CUgraphExec;
typedef struct sim_pool* CUmemoryPool;
typedef struct sim_operation* CUgraphNode;

#define SIM_STREAM_PER_THREAD_HANDLE ((CUstream)(uintptr_t)2)

enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NOT_INITIALIZED = 3,
    CUDA_ERROR_NO_DEVICE = 100,
    CUDA_ERROR_INVALID_DEVICE = 101,
    CUDA_ERROR_INVALID_CONTEXT = 201,
    CUDA_ERROR_MAP_FAILED = 205,
    CUDA_ERROR_INVALID_HANDLE = 400,
    CUDA_ERROR_NOT_FOUND = 500,
    CUDA_ERROR_NOT_READY = 600,
    CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE = 708,
    CUDA_ERROR_NOT_PERMITTED = 800,
    CUDA_ERROR_NOT_SUPPORTED = 801,
    CUDA_ERROR_UNKNOWN = 999,
};

typedef struct {
    char bytes[16];
} CUuuid;

// ---- virtual memory ---------------------------------------------------------------------------------------------
enum { LOCATION_NONE = 0, LOCATION_DEVICE = 1, LOCATION_HOST = 2, LOCATION_HOST_NUMA = 3 };
enum { ALLOCATION_PINNED = 1 };
enum { HANDLE_NONE = 0, HANDLE_POSIX_FD = 1, HANDLE_FABRIC = 8 };
enum { FABRIC_BYTES = 64 };  // of a CUmemFabricHandle

typedef struct {
    int type;
    int id;
} CUmemLocation;

typedef struct {
    int type;
    int requestedHandleTypes;
    CUmemLocation location;
    void* win32HandleMetaData;
    struct {
        unsigned char compressionType;
        unsigned char gpuDirectRDMACapable;
        unsigned short usage;
        unsigned char reserved[4];
    } allocFlags;
} CUmemAllocationProp;

typedef struct {
    CUmemLocation location;
    int flags;
} CUmemAccessDesc;

typedef struct {
    unsigned numDevices;
    size_t size;
    unsigned long long handleTypes;
    unsigned long long flags;
} CUmulticastObjectProp;

typedef struct {
    int allocType;
    int handleTypes;
    CUmemLocation location;
    void* win32SecurityAttributes;
    size_t maxSize;
    unsigned short usage;
    unsigned char reserved[54];
} CUmemPoolProps;

// ---- copies -------------------------------------------------------------------------------------------------------
enum { MEMORY_HOST = 1, MEMORY_DEVICE = 2, MEMORY_ARRAY = 3, MEMORY_UNIFIED = 4 };

typedef struct {
    size_t srcXInBytes, srcY;
    int srcMemoryType;
    const void* srcHost;
    CUdeviceptr srcDevice;
    void* srcArray;
    size_t srcPitch;
    size_t dstXInBytes, dstY;
    int dstMemoryType;
    void* dstHost;
    CUdeviceptr dstDevice;
    void* dstArray;
    size_t dstPitch;
    size_t WidthInBytes, Height;
} CUDA_MEMCPY2D;

// ---- launches -----------------------------------------------------------------------------------------------------
typedef struct {
    unsigned gridDimX, gridDimY, gridDimZ;
    unsigned blockDimX, blockDimY, blockDimZ;
    unsigned sharedMemBytes;
    CUstream hStream;
    void* attrs;
    unsigned numAttrs;
} CUlaunchConfig;

#define LAUNCH_PARAM_END ((void*)0)
#define LAUNCH_PARAM_BUFFER_POINTER ((void*)1)

// ---- checkpoint ---------------------------------------------------------------------------------------------------
typedef struct {
    unsigned timeoutMs;
    unsigned reserved0;
    uint64_t reserved1[7];
} CUcheckpointLockArgs;

typedef struct {
    CUuuid oldUuid;
    CUuuid newUuid;
} CUcheckpointGpuPair;

typedef struct {
    CUcheckpointGpuPair* gpuPairs;
    unsigned gpuPairsCount;
    char reserved[52 - sizeof(CUcheckpointGpuPair*)];
    uint64_t reserved1;
} CUcheckpointRestoreArgs;

// ---- interprocess -------------------------------------------------------------------------------------------------
typedef struct {
    char reserved[64];
} CUipcMemHandle;
typedef struct {
    char reserved[64];
} CUipcEventHandle;

#endif
