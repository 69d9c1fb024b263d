// SPDX-License-Identifier: Apache-2.0
//
// The ABI of Ascend's ACL runtime as gcr uses it, declared by us: building needs no CANN.
//
// Names     the vendor's, in C++ inside gcr::acl_abi. backends/ascend/gcr_ascend/acl.toml lists the same calls for
//           Python; tests/unit/test_sim_acl_list.py holds the two against each other.
// Versions  CANN 8.5, 9.0 and 9.1. "since" marks what an older one lacks. Compared with the vendor's headers of those
//           three versions: parameters are alike in all of them but for the four snapshot calls, which take none in 8.5
//           and 9.0. Passing (getpid(), NULL) is right everywhere: surplus register arguments are not looked at.
// Enums     passed and stored as 32-bit integers; only the values we use are named.
#ifndef GCR_ABI_ACL_H
#define GCR_ABI_ACL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
namespace gcr {
namespace acl_abi {
extern "C" {
#endif

// ---- handles and scalars ------------------------------------------------------------------------------------------
typedef int aclError;
typedef int32_t rtError_t;
typedef void* aclrtContext;
typedef void* aclrtStream;
typedef void* aclrtEvent;
typedef void* aclrtDrvMemHandle;
typedef void* aclrtBinHandle;
typedef void* aclrtFuncHandle;

typedef int32_t aclrtMemMallocPolicy;
typedef int32_t aclrtMemcpyKind;
typedef int32_t aclrtMemAttr;
typedef int32_t aclrtMemLocationType;
typedef int32_t aclrtMemHandleType;
typedef int32_t aclrtMemAllocationType;
typedef int32_t aclrtMemGranularityOptions;
typedef int32_t aclrtMemSharedHandleType;
typedef int32_t aclrtMemAccessFlags;
typedef int32_t aclrtStreamStatus;
typedef int32_t aclrtEventRecordedStatus;
typedef int32_t aclCANNPackageName;
typedef int32_t aclrtSnapShotStage;
typedef int32_t rtProcessState;

typedef void (*aclrtHostFunc)(void* args);
typedef uint32_t (*aclrtSnapShotCallBack)(int32_t deviceId, void* args);

// Only handed on as null.
typedef struct aclrtMallocConfig aclrtMallocConfig;
typedef struct aclrtBinaryLoadOptions aclrtBinaryLoadOptions;
typedef struct aclrtLaunchKernelCfg aclrtLaunchKernelCfg;
typedef struct aclrtPlaceHolderInfo aclrtPlaceHolderInfo;

// ---- values ---------------------------------------------------------------------------------------------------------
enum {
    ACL_SUCCESS = 0,
    ACL_ERROR_INVALID_PARAM = 100000,
    ACL_ERROR_UNINITIALIZE = 100001,
    ACL_ERROR_REPEAT_INITIALIZE = 100002,
    ACL_ERROR_REPEAT_FINALIZE = 100037,
    ACL_ERROR_RT_PARAM_INVALID = 107000,
    ACL_ERROR_RT_INVALID_DEVICEID = 107001,
    ACL_ERROR_RT_CONTEXT_NULL = 107002,
    ACL_ERROR_RT_FILE_OPEN = 107009,
    ACL_ERROR_RT_INVALID_HANDLE = 107017,
    ACL_ERROR_RT_FEATURE_NOT_SUPPORT = 207000,
    ACL_ERROR_RT_MEMORY_ALLOCATION = 207001,
    ACL_ERROR_RT_NO_DEVICE = 207004,
    ACL_ERROR_RT_NO_PERMISSION = 207006,
    ACL_ERROR_RT_INTERNAL_ERROR = 507000,
    ACL_ERROR_RT_KERNEL_LOOKUP = 507027,
    ACL_ERROR_RT_VECTOR_CORE_EXCEPTION = 507035,
    ACL_ERROR_RT_STREAM_SYNC_TIMEOUT = 507046,
    ACL_ERROR_RT_DRV_INTERNAL_ERROR = 507899,
    ACL_ERROR_SNAPSHOT_LOCK_TIMEOUT = 507905,
    ACL_ERROR_SNAPSHOT_LOCK_FAILED = 507906,
    ACL_ERROR_SNAPSHOT_UNLOCK_FAILED = 507907,
    ACL_ERROR_SNAPSHOT_BACKUP_FAILED = 507908,
    ACL_ERROR_SNAPSHOT_RESTORE_FAILED = 507909,
    ACL_ERROR_HOST_MEMORY_ALREADY_REGISTERED = 507910,
    ACL_ERROR_HOST_MEMORY_NOT_REGISTERED = 507911,
    ACL_ERROR_SNAPSHOT_CALLBACK_FAILED = 507912,
    ACL_ERROR_SNAPSHOT_REGISTER_CALLBACK_FAILED = 507913,
};

enum {
    ACL_MEM_MALLOC_HUGE_FIRST = 0,
    ACL_MEM_MALLOC_NORMAL_ONLY_P2P = 5,
    ACL_MEM_MALLOC_HUGE1G_ONLY = 6,
    ACL_MEM_MALLOC_HUGE1G_ONLY_P2P = 7,
    ACL_MEM_MALLOC_PAGE_MASK = 0xff,  // above: bits for bandwidth and access
};

enum {
    ACL_HBM_MEM = 1,
    ACL_HBM_MEM_HUGE = 4,
    ACL_HBM_MEM_NORMAL = 5,
    ACL_HBM_MEM_P2P_HUGE = 8,
    ACL_HBM_MEM_P2P_NORMAL = 9,
    ACL_HBM_MEM_HUGE1G = 10,
    ACL_HBM_MEM_P2P_HUGE1G = 11,
    ACL_MEM_NORMAL = 12,
    ACL_MEM_HUGE = 13,
    ACL_MEM_HUGE1G = 14,
    ACL_MEM_P2P_NORMAL = 15,
    ACL_MEM_P2P_HUGE = 16,
    ACL_MEM_P2P_HUGE1G = 17,
};

enum {
    ACL_MEMCPY_HOST_TO_HOST,
    ACL_MEMCPY_HOST_TO_DEVICE,
    ACL_MEMCPY_DEVICE_TO_HOST,
    ACL_MEMCPY_DEVICE_TO_DEVICE,
    ACL_MEMCPY_DEFAULT,
};

enum { ACL_MEM_LOCATION_TYPE_HOST = 0, ACL_MEM_LOCATION_TYPE_DEVICE = 1, ACL_MEM_LOCATION_TYPE_HOST_NUMA = 4 };
enum { ACL_MEM_HANDLE_TYPE_NONE = 0 };
enum { ACL_MEM_ALLOCATION_TYPE_PINNED = 0 };
enum { ACL_RT_MEM_ALLOC_GRANULARITY_MINIMUM, ACL_RT_MEM_ALLOC_GRANULARITY_RECOMMENDED };
enum { ACL_MEM_SHARE_HANDLE_TYPE_DEFAULT = 1, ACL_MEM_SHARE_HANDLE_TYPE_FABRIC = 2 };
enum { ACL_RT_VMM_EXPORT_FLAG_DEFAULT = 0, ACL_RT_VMM_EXPORT_FLAG_DISABLE_PID_VALIDATION = 1 };
enum { ACL_RT_MEM_ACCESS_FLAGS_NONE = 0, ACL_RT_MEM_ACCESS_FLAGS_READ = 1, ACL_RT_MEM_ACCESS_FLAGS_READWRITE = 3 };
enum { ACL_STREAM_STATUS_COMPLETE = 0, ACL_STREAM_STATUS_NOT_READY = 1 };
enum { ACL_EVENT_RECORDED_STATUS_NOT_READY = 0, ACL_EVENT_RECORDED_STATUS_COMPLETE = 1 };
enum { ACL_PKG_NAME_CANN = 0, ACL_PKG_NAME_DRIVER = 7 };
enum { RT_PROCESS_STATE_RUNNING, RT_PROCESS_STATE_LOCKED, RT_PROCESS_STATE_BACKED_UP };

enum {
    ACL_RT_SNAPSHOT_LOCK_PRE,
    ACL_RT_SNAPSHOT_BACKUP_PRE,
    ACL_RT_SNAPSHOT_BACKUP_POST,
    ACL_RT_SNAPSHOT_RESTORE_PRE,
    ACL_RT_SNAPSHOT_RESTORE_POST,
    ACL_RT_SNAPSHOT_UNLOCK_POST,
};

// ---- structures -----------------------------------------------------------------------------------------------------
typedef struct aclrtMemLocation {
    uint32_t id;
    aclrtMemLocationType type;
} aclrtMemLocation;

typedef struct aclrtPhysicalMemProp {
    aclrtMemHandleType handleType;
    aclrtMemAllocationType allocationType;
    aclrtMemAttr memAttr;
    aclrtMemLocation location;
    uint64_t reserve;
} aclrtPhysicalMemProp;

typedef struct aclrtMemAccessDesc {
    aclrtMemAccessFlags flags;
    aclrtMemLocation location;
    uint8_t rsv[12];
} aclrtMemAccessDesc;

typedef struct aclrtPtrAttributes {
    aclrtMemLocation location;
    uint32_t pageSize;
    uint32_t rsv[4];
} aclrtPtrAttributes;

typedef struct aclCANNPackageVersion {
    char version[128];
    char majorVersion[64];
    char minorVersion[64];
    char releaseVersion[64];
    char patchVersion[64];
    char reserved[128];
} aclCANNPackageVersion;

typedef struct aclrtUuid {
    char bytes[16];
} aclrtUuid;

typedef struct aclrtMemManagedLocation {
    int32_t type;
    int32_t id;
} aclrtMemManagedLocation;

typedef struct aclrtIpcEventHandle {
    char reserved[64];
} aclrtIpcEventHandle;

typedef struct aclrtSnapShotBackupArgs {
    uint32_t backupFlags;
    char reserved[60];
} aclrtSnapShotBackupArgs;

typedef struct aclrtSnapShotRestoreArgs {
    uint32_t restoreFlags;
    char reserved[60];
} aclrtSnapShotRestoreArgs;

// ---- the process and its devices --------------------------------------------------------------------------------
aclError aclInit(const char* configPath);
aclError aclFinalize(void);
aclError aclrtGetVersion(int32_t* majorVersion, int32_t* minorVersion, int32_t* patchVersion);
aclError aclsysGetCANNVersion(aclCANNPackageName name, aclCANNPackageVersion* version);
const char* aclrtGetSocName(void);
const char* aclGetRecentErrMsg(void);
aclError aclrtGetDeviceCount(uint32_t* count);
aclError aclrtSetDevice(int32_t deviceId);
aclError aclrtGetDevice(int32_t* deviceId);
aclError aclrtResetDevice(int32_t deviceId);
aclError aclrtResetDeviceForce(int32_t deviceId);
aclError aclrtSynchronizeDevice(void);
aclError aclrtDeviceGetBareTgid(int32_t* pid);
aclError aclrtDeviceGetUuid(int32_t deviceId, aclrtUuid* uuid);
aclError aclrtDeviceCanAccessPeer(int32_t* canAccessPeer, int32_t deviceId, int32_t peerDeviceId);
aclError aclrtDeviceEnablePeerAccess(int32_t peerDeviceId, uint32_t flags);
aclError aclrtDeviceDisablePeerAccess(int32_t peerDeviceId);
aclError aclrtGetMemInfo(aclrtMemAttr attr, size_t* free, size_t* total);
aclError aclrtCreateContext(aclrtContext* context, int32_t deviceId);
aclError aclrtDestroyContext(aclrtContext context);
aclError aclrtSetCurrentContext(aclrtContext context);
aclError aclrtGetCurrentContext(aclrtContext* context);

// ---- memory -----------------------------------------------------------------------------------------------------
aclError aclrtMalloc(void** devPtr, size_t size, aclrtMemMallocPolicy policy);
aclError aclrtMallocAlign32(void** devPtr, size_t size, aclrtMemMallocPolicy policy);
aclError aclrtMallocCached(void** devPtr, size_t size, aclrtMemMallocPolicy policy);
aclError aclrtMallocWithCfg(void** devPtr, size_t size, aclrtMemMallocPolicy policy, aclrtMallocConfig* cfg);
aclError aclrtFree(void* devPtr);
aclError aclrtMallocHost(void** hostPtr, size_t size);
aclError aclrtFreeHost(void* hostPtr);
aclError aclrtHostRegisterV2(void* ptr, uint64_t size, uint32_t flag);
aclError aclrtHostUnregister(void* ptr);
aclError aclrtPointerGetAttributes(const void* ptr, aclrtPtrAttributes* attributes);
aclError aclrtMemGetAddressRange(void* ptr, void** pbase, size_t* psize);  // since 9.0
aclError aclrtMemcpy(void* dst, size_t destMax, const void* src, size_t count, aclrtMemcpyKind kind);
aclError aclrtMemcpyAsync(void* dst, size_t destMax, const void* src, size_t count, aclrtMemcpyKind kind,
                          aclrtStream stream);
aclError aclrtMemset(void* devPtr, size_t maxCount, int32_t value, size_t count);
aclError aclrtMemsetAsync(void* devPtr, size_t maxCount, int32_t value, size_t count, aclrtStream stream);

// ---- virtual memory ---------------------------------------------------------------------------------------------
aclError aclrtReserveMemAddress(void** virPtr, size_t size, size_t alignment, void* expectPtr, uint64_t flags);
aclError aclrtReserveMemAddressNoUCMemory(void** virPtr, size_t size, size_t alignment, void* expectPtr,
                                          uint64_t flags);  // since 9.0
aclError aclrtReleaseMemAddress(void* virPtr);
aclError aclrtMallocPhysical(aclrtDrvMemHandle* handle, size_t size, const aclrtPhysicalMemProp* prop, uint64_t flags);
aclError aclrtFreePhysical(aclrtDrvMemHandle handle);
aclError aclrtMapMem(void* virPtr, size_t size, size_t offset, aclrtDrvMemHandle handle, uint64_t flags);
aclError aclrtUnmapMem(void* virPtr);
aclError aclrtMemSetAccess(void* virPtr, size_t size, aclrtMemAccessDesc* desc, size_t count);
aclError aclrtMemGetAccess(void* virPtr, aclrtMemLocation* location, uint64_t* flag);
aclError aclrtMemRetainAllocationHandle(void* virPtr, aclrtDrvMemHandle* handle);
aclError aclrtMemGetAllocationPropertiesFromHandle(aclrtDrvMemHandle handle, aclrtPhysicalMemProp* prop);
aclError aclrtMemGetAllocationGranularity(aclrtPhysicalMemProp* prop, aclrtMemGranularityOptions option,
                                          size_t* granularity);
// A shareable handle is a name, not a descriptor: it holds nothing, and a list says which processes may import it.
aclError aclrtMemExportToShareableHandle(aclrtDrvMemHandle handle, aclrtMemHandleType handleType, uint64_t flags,
                                         uint64_t* shareableHandle);
aclError aclrtMemExportToShareableHandleV2(aclrtDrvMemHandle handle, uint64_t flags, aclrtMemSharedHandleType shareType,
                                           void* shareableHandle);
aclError aclrtMemSetPidToShareableHandle(uint64_t shareableHandle, int32_t* pid, size_t pidNum);
aclError aclrtMemSetPidToShareableHandleV2(void* shareableHandle, aclrtMemSharedHandleType shareType, int32_t* pid,
                                           size_t pidNum);
aclError aclrtMemImportFromShareableHandle(uint64_t shareableHandle, int32_t deviceId, aclrtDrvMemHandle* handle);
aclError aclrtMemImportFromShareableHandleV2(void* shareableHandle, aclrtMemSharedHandleType shareType, uint64_t flags,
                                             aclrtDrvMemHandle* handle);

// ---- streams and events -------------------------------------------------------------------------------------------
aclError aclrtCreateStream(aclrtStream* stream);
aclError aclrtCreateStreamWithConfig(aclrtStream* stream, uint32_t priority, uint32_t flag);
aclError aclrtDestroyStream(aclrtStream stream);
aclError aclrtDestroyStreamForce(aclrtStream stream);
aclError aclrtSynchronizeStream(aclrtStream stream);
aclError aclrtSynchronizeStreamWithTimeout(aclrtStream stream, int32_t timeout);
aclError aclrtStreamQuery(aclrtStream stream, aclrtStreamStatus* status);
aclError aclrtStreamWaitEvent(aclrtStream stream, aclrtEvent event);
aclError aclrtLaunchHostFunc(aclrtStream stream, aclrtHostFunc fn, void* args);
aclError aclrtCreateEvent(aclrtEvent* event);
aclError aclrtCreateEventWithFlag(aclrtEvent* event, uint32_t flag);
aclError aclrtCreateEventExWithFlag(aclrtEvent* event, uint32_t flag);
aclError aclrtDestroyEvent(aclrtEvent event);
aclError aclrtRecordEvent(aclrtEvent event, aclrtStream stream);
aclError aclrtQueryEventStatus(aclrtEvent event, aclrtEventRecordedStatus* status);
aclError aclrtSynchronizeEvent(aclrtEvent event);
aclError aclrtEventElapsedTime(float* ms, aclrtEvent startEvent, aclrtEvent endEvent);

// ---- kernels ------------------------------------------------------------------------------------------------------
aclError aclrtBinaryLoadFromFile(const char* binPath, aclrtBinaryLoadOptions* options, aclrtBinHandle* binHandle);
aclError aclrtBinaryLoadFromData(const void* data, size_t length, const aclrtBinaryLoadOptions* options,
                                 aclrtBinHandle* binHandle);
aclError aclrtBinaryUnLoad(aclrtBinHandle binHandle);
aclError aclrtBinaryGetFunction(const aclrtBinHandle binHandle, const char* kernelName, aclrtFuncHandle* funcHandle);
// argsData is device memory here and in V2, host memory in WithHostArgs.
aclError aclrtLaunchKernel(aclrtFuncHandle funcHandle, uint32_t numBlocks, const void* argsData, size_t argsSize,
                           aclrtStream stream);
aclError aclrtLaunchKernelV2(aclrtFuncHandle funcHandle, uint32_t numBlocks, const void* argsData, size_t argsSize,
                             aclrtLaunchKernelCfg* cfg, aclrtStream stream);
aclError aclrtLaunchKernelWithHostArgs(aclrtFuncHandle funcHandle, uint32_t numBlocks, aclrtStream stream,
                                       aclrtLaunchKernelCfg* cfg, void* hostArgs, size_t argsSize,
                                       aclrtPlaceHolderInfo* placeHolderArray, size_t placeHolderNum);

// ---- snapshots: of the calling process only -----------------------------------------------------------------------
aclError aclrtSnapShotProcessLock(int pid, void* reserve);  // since 8.5
aclError aclrtSnapShotProcessUnlock(int pid, void* reserve);  // since 8.5
aclError aclrtSnapShotProcessBackup(int pid, aclrtSnapShotBackupArgs* args);  // since 8.5
aclError aclrtSnapShotProcessRestore(int pid, aclrtSnapShotRestoreArgs* args);  // since 8.5
aclError aclrtSnapShotCallbackRegister(aclrtSnapShotStage stage, aclrtSnapShotCallBack callback,
                                       void* args);  // since 9.0
aclError aclrtSnapShotCallbackUnregister(aclrtSnapShotStage stage, aclrtSnapShotCallBack callback);  // since 9.0
rtError_t rtSnapShotProcessGetState(rtProcessState* state);  // since 8.5, in libruntime.so

#ifdef __cplusplus
}  // extern "C"
}  // namespace acl_abi
}  // namespace gcr
#endif
#endif
