// SPDX-License-Identifier: Apache-2.0
//
// The CUDA driver's ABI as this shim uses it, declared by us: building needs no SDK.
//
// Names  the vendor's, inside gcr::cuda_abi, so that a reader of the driver API needs no dictionary and a test can put
//        the vendor's header beside this one. tests/architecture/test_hooks_list.py compares sizes, offsets and values.
// Enums  passed and stored as 32-bit integers, as the vendor's are; only the values we use are named.
// Opaque structs the shim merely hands on are incomplete types: no code can read them by mistake.
#ifndef GCR_ABI_CUDA_H
#define GCR_ABI_CUDA_H

#include <stddef.h>
#include <stdint.h>

namespace gcr {
namespace cuda_abi {

// ---- handles and scalars ----------------------------------------------------------------------------------------
using CUresult = int;
using CUdevice = int;
using CUdeviceptr = unsigned long long;
using CUdeviceptr_v1 = unsigned int;  // the 32-bit ABI of CUDA 2, still exported
using CUmemGenericAllocationHandle = unsigned long long;
using CUtexObject = unsigned long long;
using CUsurfObject = unsigned long long;
using CUgraphConditionalHandle = uint64_t;
using CUlogicalEndpointId = uint32_t;
using CUlogIterator = unsigned int;

using CUcontext = struct CUctx_st*;
using CUmodule = struct CUmod_st*;
using CUfunction = struct CUfunc_st*;
using CUlibrary = struct CUlib_st*;
using CUkernel = struct CUkern_st*;
using CUarray = struct CUarray_st*;
using CUmipmappedArray = struct CUmipmappedArray_st*;
using CUtexref = struct CUtexref_st*;
using CUsurfref = struct CUsurfref_st*;
using CUevent = struct CUevent_st*;
using CUstream = struct CUstream_st*;
using CUgraphicsResource = struct CUgraphicsResource_st*;
using CUexternalMemory = struct CUextMemory_st*;
using CUexternalSemaphore = struct CUextSemaphore_st*;
using CUgraph = struct CUgraph_st*;
using CUgraphNode = struct CUgraphNode_st*;
using CUgraphExec = struct CUgraphExec_st*;
using CUmemoryPool = struct CUmemPoolHandle_st*;
using CUgreenCtx = struct CUgreenCtx_st*;
using CUdevResourceDesc = struct CUdevResourceDesc_st*;
using CUeglStreamConnection = struct CUeglStreamConnection_st*;

using CUlinkState = struct CUlinkState_st*;
using CUuserObject = struct CUuserObject_st*;
using CUasyncCallbackHandle = struct CUasyncCallbackEntry_st*;

using CUasyncCallback = void (*)();  // only handed on
using CUhostFn = void (*)(void* userData);
using CUstreamCallback = void (*)(CUstream stream, CUresult status, void* userData);
using CUoccupancyB2DSize = size_t (*)(int blockSize);
using CUgraphRecaptureCallback = void (*)();  // only handed on

// ---- enums: 32-bit integers --------------------------------------------------------------------------------------
using CUaddress_mode = unsigned int;
using CUarray_format = unsigned int;
using CUatomicOperation = unsigned int;
using CUdevResourceType = unsigned int;
using CUexecAffinityType = unsigned int;
using CUfilter_mode = unsigned int;
using CUflushGPUDirectRDMAWritesScope = unsigned int;
using CUflushGPUDirectRDMAWritesTarget = unsigned int;
using CUfunctionLoadingState = unsigned int;
using CUGLDeviceList = unsigned int;
using CUgraphNodeType = unsigned int;
using CUjitInputType = unsigned int;
using CUmem_range_attribute = unsigned int;
using CUmoduleLoadingMode = unsigned int;
using CUtensorMapDataType = unsigned int;
using CUtensorMapFloatOOBfill = unsigned int;
using CUtensorMapIm2ColWideMode = unsigned int;
using CUtensorMapInterleave = unsigned int;
using CUtensorMapL2promotion = unsigned int;
using CUtensorMapSwizzle = unsigned int;
using CUtensorMapAllocClass = unsigned int;
using CUdevice_P2PAttribute = unsigned int;
using CUdevice_attribute = unsigned int;
using CUdriverProcAddressQueryResult = unsigned int;
using CUfunc_cache = unsigned int;
using CUfunction_attribute = unsigned int;
using CUgraphExecUpdateResult = unsigned int;
using CUgraphMem_attribute = unsigned int;
using CUjit_option = unsigned int;
using CUkernelNodeAttrID = unsigned int;
using CUlibraryOption = unsigned int;
using CUlimit = unsigned int;
using CUlogicalEndpointIpcHandleType = unsigned int;
using CUmemAccess_flags = unsigned int;
using CUmemAllocationGranularity_flags = unsigned int;
using CUmemAllocationHandleType = unsigned int;
using CUmemAllocationType = unsigned int;
using CUmemLocationType = unsigned int;
using CUmemPool_attribute = unsigned int;
using CUmemRangeHandleType = unsigned int;
using CUmem_advise = unsigned int;
using CUmulticastGranularity_flags = unsigned int;
using CUpointer_attribute = unsigned int;
using CUsharedconfig = unsigned int;
using CUstreamAttrID = unsigned int;
using CUstreamCaptureMode = unsigned int;
using CUstreamCaptureStatus = unsigned int;

enum : int {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NOT_INITIALIZED = 3,
    CUDA_ERROR_DEINITIALIZED = 4,
    CUDA_ERROR_STUB_LIBRARY = 34,
    CUDA_ERROR_NO_DEVICE = 100,
    CUDA_ERROR_INVALID_DEVICE = 101,
    CUDA_ERROR_INVALID_CONTEXT = 201,
    CUDA_ERROR_ALREADY_MAPPED = 208,
    CUDA_ERROR_NOT_MAPPED = 211,
    CUDA_ERROR_PEER_ACCESS_UNSUPPORTED = 217,
    CUDA_ERROR_INVALID_HANDLE = 400,
    CUDA_ERROR_ILLEGAL_STATE = 401,
    CUDA_ERROR_NOT_FOUND = 500,
    CUDA_ERROR_NOT_READY = 600,
    CUDA_ERROR_ILLEGAL_ADDRESS = 700,
    CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED = 704,
    CUDA_ERROR_PEER_ACCESS_NOT_ENABLED = 705,
    CUDA_ERROR_CONTEXT_IS_DESTROYED = 709,
    CUDA_ERROR_NOT_PERMITTED = 800,
    CUDA_ERROR_NOT_SUPPORTED = 801,
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
    CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901,
    CUDA_ERROR_STREAM_CAPTURE_IMPLICIT = 906,
    CUDA_ERROR_TIMEOUT = 909,
    CUDA_ERROR_UNKNOWN = 999,
};

enum : unsigned int {
    CU_MEM_ALLOCATION_TYPE_INVALID = 0,
    CU_MEM_ALLOCATION_TYPE_PINNED = 1,
    CU_MEM_ALLOCATION_TYPE_MANAGED = 2,

    CU_MEM_HANDLE_TYPE_NONE = 0,
    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1,
    CU_MEM_HANDLE_TYPE_WIN32 = 2,
    CU_MEM_HANDLE_TYPE_WIN32_KMT = 4,
    CU_MEM_HANDLE_TYPE_FABRIC = 8,

    CU_MEM_LOCATION_TYPE_INVALID = 0,
    CU_MEM_LOCATION_TYPE_DEVICE = 1,
    CU_MEM_LOCATION_TYPE_HOST = 2,
    CU_MEM_LOCATION_TYPE_HOST_NUMA = 3,
    CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT = 4,

    CU_MEM_ACCESS_FLAGS_PROT_NONE = 0,
    CU_MEM_ACCESS_FLAGS_PROT_READ = 1,
    CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3,

    CU_MEM_ALLOC_GRANULARITY_MINIMUM = 0,
    CU_MEM_ALLOC_GRANULARITY_RECOMMENDED = 1,

    CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD = 1,

    CU_MEM_ALLOCATION_COMP_NONE = 0,
    CU_MEM_ALLOCATION_COMP_GENERIC = 1,
    CU_MEM_CREATE_USAGE_TILE_POOL = 1,
    CU_MEM_CREATE_USAGE_HW_DECOMPRESS = 2,
    CU_MEM_CREATE_USAGE_GPU_DIRECT_RDMA_OVER_PCIE = 4,

    CU_MEMORYTYPE_HOST = 1,
    CU_MEMORYTYPE_DEVICE = 2,
    CU_MEMORYTYPE_ARRAY = 3,
    CU_MEMORYTYPE_UNIFIED = 4,

    CU_POINTER_ATTRIBUTE_CONTEXT = 1,
    CU_POINTER_ATTRIBUTE_MEMORY_TYPE = 2,
    CU_POINTER_ATTRIBUTE_DEVICE_POINTER = 3,
    CU_POINTER_ATTRIBUTE_HOST_POINTER = 4,
    CU_POINTER_ATTRIBUTE_P2P_TOKENS = 5,
    CU_POINTER_ATTRIBUTE_SYNC_MEMOPS = 6,
    CU_POINTER_ATTRIBUTE_BUFFER_ID = 7,
    CU_POINTER_ATTRIBUTE_IS_MANAGED = 8,
    CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9,
    CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE = 10,
    CU_POINTER_ATTRIBUTE_RANGE_START_ADDR = 11,
    CU_POINTER_ATTRIBUTE_RANGE_SIZE = 12,
    CU_POINTER_ATTRIBUTE_MAPPED = 13,
    CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES = 14,
    CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE = 15,
    CU_POINTER_ATTRIBUTE_ACCESS_FLAGS = 16,
    CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE = 17,
    CU_POINTER_ATTRIBUTE_MAPPING_SIZE = 18,
    CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR = 19,
    CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID = 20,
    CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE = 21,

    CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING = 41,
    CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 102,
    CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED = 103,
    CU_DEVICE_ATTRIBUTE_GENERIC_COMPRESSION_SUPPORTED = 107,
    CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED = 110,
    CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED = 128,

    CU_STREAM_DEFAULT = 0,
    CU_STREAM_NON_BLOCKING = 1,
    CU_EVENT_DEFAULT = 0,
    CU_EVENT_BLOCKING_SYNC = 1,
    CU_EVENT_DISABLE_TIMING = 2,
    CU_EVENT_INTERPROCESS = 4,

    CU_STREAM_CAPTURE_MODE_GLOBAL = 0,
    CU_STREAM_CAPTURE_MODE_THREAD_LOCAL = 1,
    CU_STREAM_CAPTURE_MODE_RELAXED = 2,
    CU_STREAM_CAPTURE_STATUS_NONE = 0,
    CU_STREAM_CAPTURE_STATUS_ACTIVE = 1,
    CU_STREAM_CAPTURE_STATUS_INVALIDATED = 2,

    CU_GET_PROC_ADDRESS_DEFAULT = 0,
    CU_GET_PROC_ADDRESS_LEGACY_STREAM = 1,
    CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM = 2,
    CU_GET_PROC_ADDRESS_SUCCESS = 0,
    CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND = 1,
    CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT = 2,
};

// The two default streams have no object: their handles are constants.
inline CUstream legacy_stream() {
    return reinterpret_cast<CUstream>(uintptr_t{1});
}
inline CUstream per_thread_stream() {
    return reinterpret_cast<CUstream>(uintptr_t{2});
}

}  // namespace cuda_abi
}  // namespace gcr

#include "abi/cuda_structs.h"

#endif  // GCR_ABI_CUDA_H
