// SPDX-License-Identifier: Apache-2.0
//
// The structs of the CUDA driver's ABI. A part of abi/cuda.h, which includes it after the scalars and constants.
#ifndef GCR_ABI_CUDA_STRUCTS_H
#define GCR_ABI_CUDA_STRUCTS_H

#include "abi/cuda.h"

namespace gcr {
namespace cuda_abi {

// ---- structs the shim reads or passes by value -------------------------------------------------------------------
struct CUuuid {
    char bytes[16];
};

struct CUmemLocation {
    CUmemLocationType type;
    int id;
};

struct CUmemAccessDesc {
    CUmemLocation location;
    CUmemAccess_flags flags;
};

struct CUmemAllocationProp {
    CUmemAllocationType type;
    CUmemAllocationHandleType requestedHandleTypes;
    CUmemLocation location;
    void* win32HandleMetaData;
    struct {
        unsigned char compressionType;
        unsigned char gpuDirectRDMACapable;
        unsigned short usage;
        unsigned char reserved[4];
    } allocFlags;
};

struct CUmulticastObjectProp {
    unsigned int numDevices;
    size_t size;
    unsigned long long handleTypes;
    unsigned long long flags;
};

struct CUmemPoolProps {
    CUmemAllocationType allocType;
    CUmemAllocationHandleType handleTypes;
    CUmemLocation location;
    void* win32SecurityAttributes;
    size_t maxSize;
    unsigned short usage;
    unsigned char gpuDirectRDMACapable;  // added in 13.4, out of `reserved`
    unsigned char reserved[53];
};

struct CUmemPoolPtrExportData {
    unsigned char reserved[64];
};

struct CUarrayMapInfo {
    unsigned int resourceType;
    union {
        CUmipmappedArray mipmap;
        CUarray array;
    } resource;
    unsigned int subresourceType;
    union {
        struct {
            unsigned int level, layer;
            unsigned int offsetX, offsetY, offsetZ;
            unsigned int extentWidth, extentHeight, extentDepth;
        } sparseLevel;
        struct {
            unsigned int layer;
            unsigned long long offset;
            unsigned long long size;
        } miptail;
    } subresource;
    unsigned int memOperationType;
    unsigned int memHandleType;
    union {
        CUmemGenericAllocationHandle memHandle;
    } memHandle;
    unsigned long long offset;
    unsigned int deviceBitMask;
    unsigned int flags;
    unsigned int reserved[2];
};

struct CUDA_ARRAY_DESCRIPTOR {
    size_t Width;
    size_t Height;
    CUarray_format Format;
    unsigned int NumChannels;
};

struct CUDA_ARRAY3D_DESCRIPTOR {
    size_t Width;
    size_t Height;
    size_t Depth;
    CUarray_format Format;
    unsigned int NumChannels;
    unsigned int Flags;
};

struct CUDA_ARRAY_MEMORY_REQUIREMENTS {
    size_t size;
    size_t alignment;
    unsigned int reserved[4];
};

struct CUDA_KERNEL_NODE_PARAMS {
    CUfunction func;
    unsigned int gridDimX;
    unsigned int gridDimY;
    unsigned int gridDimZ;
    unsigned int blockDimX;
    unsigned int blockDimY;
    unsigned int blockDimZ;
    unsigned int sharedMemBytes;
    void** kernelParams;
    void** extra;
    CUkernel kern;
    CUcontext ctx;
};

struct CUipcMemHandle {
    char reserved[64];
};

struct CUipcEventHandle {
    char reserved[64];
};

struct CUeglFrame {  // by value, in cuEGLStreamProducerPresentFrame
    union {
        CUarray pArray[3];
        void* pPitch[3];
    } frame;
    unsigned int width, height, depth, pitch, planeCount, numChannels;
    unsigned int frameType, eglColorFormat;
    CUarray_format cuFormat;
};

// ---- structs the shim only hands on ------------------------------------------------------------------------------
struct CUDA_ARRAY3D_DESCRIPTOR_v1;
struct CUDA_ARRAY_DESCRIPTOR_v1;
struct CUDA_BATCH_MEM_OP_NODE_PARAMS;
struct CUDA_EXTERNAL_MEMORY_BUFFER_DESC;
struct CUDA_EXTERNAL_MEMORY_HANDLE_DESC;
struct CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC;
struct CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC;
struct CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS;
struct CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS;
struct CUDA_EXT_SEM_SIGNAL_NODE_PARAMS;
struct CUDA_EXT_SEM_WAIT_NODE_PARAMS;
struct CUDA_FABRIC_COPY_BATCH_OP;
struct CUDA_GRAPH_INSTANTIATE_PARAMS;
struct CUDA_HOST_NODE_PARAMS;
struct CUDA_KERNEL_NODE_PARAMS_v1;
struct CUDA_LAUNCH_PARAMS;
struct CUDA_MEMCPY2D;
struct CUDA_MEMCPY2D_v1;
struct CUDA_MEMCPY3D;
struct CUDA_MEMCPY3D_BATCH_OP;
struct CUDA_MEMCPY3D_PEER;
struct CUDA_MEMCPY3D_v1;
struct CUDA_MEMSET_NODE_PARAMS;
struct CUDA_MEM_ALLOC_NODE_PARAMS;
struct CUDA_RESOURCE_DESC;
struct CUDA_RESOURCE_VIEW_DESC;
struct CUDA_TEXTURE_DESC;
struct CUDA_ARRAY_SPARSE_PROPERTIES;
struct CU_DEV_SM_RESOURCE_GROUP_PARAMS;
struct CUcliqueInfo;
struct CUctxCreateParams;
struct CUdevResource;
struct CUdevprop;
struct CUtensorMap;
struct CUexecAffinityParam;
struct CUgraphEdgeData;
struct CUgraphExecUpdateResultInfo;
struct CUgraphNodeParams;
union CUkernelNodeAttrValue;
struct CUlaunchConfig;
struct CUlogicalEndpointProp;
struct CUmemDecompressParams;
struct CUmemcpyAttributes;
union CUstreamAttrValue;
union CUstreamBatchMemOpParams;
struct CUstreamCigCaptureParams;

}  // namespace cuda_abi
}  // namespace gcr

#endif  // GCR_ABI_CUDA_STRUCTS_H
