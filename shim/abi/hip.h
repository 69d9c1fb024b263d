// SPDX-License-Identifier: Apache-2.0
//
// The HIP runtime's ABI as the shim and the simulated runtime use it, declared by us: building needs no SDK.
//
// Names    the vendor's; in C++ inside gcr::hip_abi, so that a test can put the vendor's declarations beside these.
// Layout   ROCm 5.4 and newer. Older runtimes order hipMemAllocationProp differently; nothing here fits them.
// Enums    passed and stored as 32-bit integers, as the vendor's are; only the values we use are named.
// Checked  against the declarations in hip-python's wheels (tests/unit/test_sim_hip_abi.py).
#ifndef GCR_ABI_HIP_H
#define GCR_ABI_HIP_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
namespace gcr {
namespace hip_abi {
#endif

// ---- handles and scalars ----------------------------------------------------------------------------------------
typedef int hipError_t;
typedef int hipDevice_t;
typedef void* hipDeviceptr_t;
typedef struct ihipStream_t* hipStream_t;
typedef struct ihipEvent_t* hipEvent_t;
typedef struct ihipModule_t* hipModule_t;
typedef struct ihipModuleSymbol_t* hipFunction_t;
typedef struct ihipMemGenericAllocationHandle* hipMemGenericAllocationHandle_t;
typedef struct ihipMemPoolHandle_t* hipMemPool_t;
typedef struct ihipGraph* hipGraph_t;
typedef struct hipGraphNode* hipGraphNode_t;
typedef struct hipGraphExec* hipGraphExec_t;
typedef struct hipArray* hipArray_t;
typedef struct hipMipmappedArray* hipMipmappedArray_t;

typedef void (*hipHostFn_t)(void* userData);
typedef void (*hipStreamCallback_t)(hipStream_t stream, hipError_t status, void* userData);

// ---- enums: 32-bit integers --------------------------------------------------------------------------------------
typedef unsigned int hipDeviceAttribute_t;
typedef unsigned int hipDeviceP2PAttr;
typedef unsigned int hipDriverProcAddressQueryResult;
typedef unsigned int hipFuncAttribute;
typedef unsigned int hipFunction_attribute;
typedef unsigned int hipJitOption;
typedef unsigned int hipLimit_t;
typedef unsigned int hipMemAccessFlags;
typedef unsigned int hipMemAllocationGranularity_flags;
typedef unsigned int hipMemAllocationHandleType;
typedef unsigned int hipMemAllocationType;
typedef unsigned int hipMemLocationType;
typedef unsigned int hipMemPoolAttr;
typedef unsigned int hipMemcpyKind;
typedef unsigned int hipMemoryAdvise;
typedef unsigned int hipMemoryType;
typedef unsigned int hipPointer_attribute;
typedef unsigned int hipStreamCaptureMode;
typedef unsigned int hipStreamCaptureStatus;

enum {
    hipSuccess = 0,
    hipErrorInvalidValue = 1,
    hipErrorOutOfMemory = 2,
    hipErrorNotInitialized = 3,
    hipErrorDeinitialized = 4,
    hipErrorInvalidConfiguration = 9,
    hipErrorInvalidPitchValue = 12,
    hipErrorInvalidMemcpyDirection = 21,
    hipErrorInvalidDeviceFunction = 98,
    hipErrorNoDevice = 100,
    hipErrorInvalidDevice = 101,
    hipErrorInvalidImage = 200,
    hipErrorInvalidContext = 201,
    hipErrorUnsupportedLimit = 215,
    hipErrorPeerAccessUnsupported = 217,
    hipErrorInvalidKernelFile = 218,
    hipErrorFileNotFound = 301,
    hipErrorOperatingSystem = 304,
    hipErrorInvalidHandle = 400,
    hipErrorIllegalState = 401,
    hipErrorNotFound = 500,
    hipErrorNotReady = 600,
    hipErrorIllegalAddress = 700,
    hipErrorPeerAccessAlreadyEnabled = 704,
    hipErrorPeerAccessNotEnabled = 705,
    hipErrorContextIsDestroyed = 709,
    hipErrorHostMemoryAlreadyRegistered = 712,
    hipErrorHostMemoryNotRegistered = 713,
    hipErrorNotSupported = 801,
    hipErrorStreamCaptureUnsupported = 900,
    hipErrorStreamCaptureInvalidated = 901,
    hipErrorStreamCaptureMerge = 902,
    hipErrorStreamCaptureUnmatched = 903,
    hipErrorStreamCaptureUnjoined = 904,
    hipErrorStreamCaptureIsolation = 905,
    hipErrorStreamCaptureImplicit = 906,
    hipErrorCapturedEvent = 907,
    hipErrorStreamCaptureWrongThread = 908,
    hipErrorUnknown = 999,
};

enum {
    hipMemLocationTypeInvalid = 0,
    hipMemLocationTypeDevice = 1,
    hipMemLocationTypeHost = 2,
    hipMemLocationTypeHostNuma = 3,

    hipMemAllocationTypeInvalid = 0,
    hipMemAllocationTypePinned = 1,
    hipMemAllocationTypeUncached = 0x40000000,

    hipMemHandleTypeNone = 0,
    hipMemHandleTypePosixFileDescriptor = 1,

    hipMemAccessFlagsProtNone = 0,
    hipMemAccessFlagsProtRead = 1,
    hipMemAccessFlagsProtReadWrite = 3,

    hipMemAllocationGranularityMinimum = 0,
    hipMemAllocationGranularityRecommended = 1,

    hipMemcpyHostToHost = 0,
    hipMemcpyHostToDevice = 1,
    hipMemcpyDeviceToHost = 2,
    hipMemcpyDeviceToDevice = 3,
    hipMemcpyDefault = 4,
    hipMemcpyDeviceToDeviceNoCU = 1024,

    hipMemoryTypeUnregistered = 0,
    hipMemoryTypeHost = 1,
    hipMemoryTypeDevice = 2,
    hipMemoryTypeManaged = 3,
    hipMemoryTypeArray = 10,
    hipMemoryTypeUnified = 11,

    hipDeviceAttributeManagedMemory = 24,
    hipDeviceAttributePciBusId = 67,
    hipDeviceAttributeMemoryPoolsSupported = 88,
    hipDeviceAttributeVirtualMemoryManagementSupported = 89,
    hipDeviceAttributeHostRegisterSupported = 90,
    hipDeviceAttributeMemoryPoolSupportedHandleTypes = 91,

    hipDevP2PAttrPerformanceRank = 0,
    hipDevP2PAttrAccessSupported = 1,
    hipDevP2PAttrNativeAtomicSupported = 2,
    hipDevP2PAttrHipArrayAccessSupported = 3,

    hipMemPoolReuseFollowEventDependencies = 1,
    hipMemPoolReuseAllowInternalDependencies = 3,
    hipMemPoolAttrReleaseThreshold = 4,
    hipMemPoolAttrUsedMemHigh = 8,

    HIP_POINTER_ATTRIBUTE_CONTEXT = 1,
    HIP_POINTER_ATTRIBUTE_MEMORY_TYPE = 2,
    HIP_POINTER_ATTRIBUTE_DEVICE_POINTER = 3,
    HIP_POINTER_ATTRIBUTE_HOST_POINTER = 4,
    HIP_POINTER_ATTRIBUTE_SYNC_MEMOPS = 6,
    HIP_POINTER_ATTRIBUTE_BUFFER_ID = 7,
    HIP_POINTER_ATTRIBUTE_IS_MANAGED = 8,
    HIP_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9,
    HIP_POINTER_ATTRIBUTE_IS_LEGACY_HIP_IPC_CAPABLE = 10,
    HIP_POINTER_ATTRIBUTE_RANGE_START_ADDR = 11,
    HIP_POINTER_ATTRIBUTE_RANGE_SIZE = 12,
    HIP_POINTER_ATTRIBUTE_MAPPED = 13,
    HIP_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES = 14,
    HIP_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE = 15,
    HIP_POINTER_ATTRIBUTE_ACCESS_FLAGS = 16,
    HIP_POINTER_ATTRIBUTE_MEMPOOL_HANDLE = 17,

    hipLimitStackSize = 0,
    hipLimitPrintfFifoSize = 1,
    hipLimitMallocHeapSize = 2,

    HIP_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK = 0,
    HIP_FUNC_ATTRIBUTE_MAX = 10,  // of 7.2; 7.15 has more

    hipStreamCaptureModeGlobal = 0,
    hipStreamCaptureModeThreadLocal = 1,
    hipStreamCaptureModeRelaxed = 2,
    hipStreamCaptureStatusNone = 0,
    hipStreamCaptureStatusActive = 1,
    hipStreamCaptureStatusInvalidated = 2,

    HIP_GET_PROC_ADDRESS_SUCCESS = 0,
    HIP_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND = 1,
};

// Macros of the vendor's.
enum {
    hipStreamDefault = 0,
    hipStreamNonBlocking = 1,
    hipEventDefault = 0,
    hipEventBlockingSync = 1,
    hipEventDisableTiming = 2,
    hipEventInterprocess = 4,
    hipHostMallocDefault = 0,
    hipHostMallocPortable = 1,
    hipHostMallocMapped = 2,
    hipHostMallocWriteCombined = 4,
    hipHostMallocNumaUser = 0x20000000,
    hipHostMallocCoherent = 0x40000000,
    hipHostRegisterDefault = 0,
    hipHostRegisterPortable = 1,
    hipHostRegisterMapped = 2,
    hipHostRegisterIoMemory = 4,
    hipExtHostRegisterCoarseGrained = 8,
    hipMemAttachGlobal = 1,
    hipMemAttachHost = 2,
    hipIpcMemLazyEnablePeerAccess = 1,
    hipInvalidDeviceId = -2,
    hipStreamWaitValueGte = 0,
    hipStreamWaitValueEq = 1,
    hipStreamWaitValueAnd = 2,
    hipStreamWaitValueNor = 3,
    HIP_LAUNCH_PARAM_BUFFER_POINTER = 1,  // these three: values of a void*
    HIP_LAUNCH_PARAM_BUFFER_SIZE = 2,
    HIP_LAUNCH_PARAM_END = 3,
};

// The two default streams have no object: their handles are constants. The null handle means the legacy one.
enum { HIP_STREAM_LEGACY = 1, HIP_STREAM_PER_THREAD = 2 };

// ---- structs -----------------------------------------------------------------------------------------------------
typedef struct dim3 {
    uint32_t x, y, z;
} dim3;

typedef struct hipUUID_t {
    char bytes[16];
} hipUUID;

typedef struct hipMemLocation {
    hipMemLocationType type;
    int id;
} hipMemLocation;

typedef struct hipMemAccessDesc {
    hipMemLocation location;
    hipMemAccessFlags flags;
} hipMemAccessDesc;

typedef struct hipMemAllocationProp {
    hipMemAllocationType type;
    hipMemAllocationHandleType requestedHandleType;
    hipMemLocation location;
    void* win32HandleMetaData;
    struct {
        unsigned char compressionType;
        unsigned char gpuDirectRDMACapable;
        unsigned short usage;
    } allocFlags;
} hipMemAllocationProp;

typedef struct hipMemPoolProps {
    hipMemAllocationType allocType;
    hipMemAllocationHandleType handleTypes;
    hipMemLocation location;
    void* win32SecurityAttributes;
    size_t maxSize;
    unsigned char reserved[56];
} hipMemPoolProps;

typedef struct hipExtent {
    size_t width;
    size_t height;
    size_t depth;
} hipExtent;

typedef struct hipPitchedPtr {
    void* ptr;
    size_t pitch;
    size_t xsize;
    size_t ysize;
} hipPitchedPtr;

typedef struct hipChannelFormatDesc {
    int x, y, z, w;  // bits
    unsigned int f;
} hipChannelFormatDesc;

typedef struct HIP_ARRAY_DESCRIPTOR {
    size_t Width;
    size_t Height;
    unsigned int Format;
    unsigned int NumChannels;
} HIP_ARRAY_DESCRIPTOR;

typedef struct HIP_ARRAY3D_DESCRIPTOR {
    size_t Width;
    size_t Height;
    size_t Depth;
    unsigned int Format;
    unsigned int NumChannels;
    unsigned int Flags;
} HIP_ARRAY3D_DESCRIPTOR;

typedef struct hipArrayMapInfo {
    unsigned int resourceType;
    void* resource;
    unsigned int subresourceType;
    unsigned long long subresource[4];
    unsigned int memOperationType;
    unsigned int memHandleType;
    hipMemGenericAllocationHandle_t memHandle;
    unsigned long long offset;
    unsigned int deviceBitMask;
    unsigned int flags;
    unsigned int reserved[2];
} hipArrayMapInfo;

typedef struct hipPointerAttribute_t {
    hipMemoryType type;
    int device;
    void* devicePointer;
    void* hostPointer;
    int isManaged;
    unsigned int allocationFlags;
} hipPointerAttribute_t;

typedef struct hipIpcMemHandle_st {
    char reserved[64];
} hipIpcMemHandle_t;

typedef struct hipIpcEventHandle_st {
    char reserved[64];
} hipIpcEventHandle_t;

typedef struct hip_Memcpy2D {
    size_t srcXInBytes, srcY;
    hipMemoryType srcMemoryType;
    const void* srcHost;
    hipDeviceptr_t srcDevice;
    hipArray_t srcArray;
    size_t srcPitch;
    size_t dstXInBytes, dstY;
    hipMemoryType dstMemoryType;
    void* dstHost;
    hipDeviceptr_t dstDevice;
    hipArray_t dstArray;
    size_t dstPitch;
    size_t WidthInBytes, Height;
} hip_Memcpy2D;

typedef struct HIP_LAUNCH_CONFIG_st {
    unsigned int gridDimX, gridDimY, gridDimZ;
    unsigned int blockDimX, blockDimY, blockDimZ;
    unsigned int sharedMemBytes;
    hipStream_t hStream;
    void* attrs;
    unsigned int numAttrs;
} HIP_LAUNCH_CONFIG;

typedef struct hipLaunchConfig_st {
    dim3 gridDim;
    dim3 blockDim;
    size_t dynamicSmemBytes;
    hipStream_t stream;
    void* attrs;
    unsigned int numAttrs;
} hipLaunchConfig_t;

#ifdef __cplusplus
}  // namespace hip_abi
}  // namespace gcr
#endif

#include "abi/hip_device.h"

#endif  // GCR_ABI_HIP_H
