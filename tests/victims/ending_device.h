// SPDX-License-Identifier: Apache-2.0
//
// What ending_victim.c asks of a device, in the words of each vendor's driver: VENDOR_CUDA, VENDOR_HIP or VENDOR_ACL.
// Every call returns 0, or the driver's number.
#ifndef ENDING_DEVICE_H
#define ENDING_DEVICE_H

#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>

typedef uintptr_t device_pointer;

enum { kShutDown = 4 };  // CUDA's and HIP's number for a driver that has shut down

static void* library;

#define CALL(name, ...) static int (*name)(__VA_ARGS__);
#if defined(VENDOR_CUDA)
#define LIBRARY "libcuda.so.1"
#define CALLS(CALL)                                            \
    CALL(cuInit, unsigned)                                     \
    CALL(cuDevicePrimaryCtxRetain, void**, int)                \
    CALL(cuDevicePrimaryCtxRelease_v2, int)                    \
    CALL(cuDevicePrimaryCtxReset_v2, int)                      \
    CALL(cuCtxSetCurrent, void*)                               \
    CALL(cuCtxSynchronize, void)                               \
    CALL(cuMemAlloc_v2, device_pointer*, size_t)               \
    CALL(cuMemFree_v2, device_pointer)                         \
    CALL(cuMemGetInfo_v2, size_t*, size_t*)                    \
    CALL(cuMemsetD8_v2, device_pointer, unsigned char, size_t) \
    CALL(cuMemcpyDtoH_v2, void*, device_pointer, size_t)
#elif defined(VENDOR_HIP)
#define LIBRARY "libamdhip64.so"
#define CALLS(CALL)                              \
    CALL(hipSetDevice, int)                      \
    CALL(hipDeviceReset, void)                   \
    CALL(hipDeviceSynchronize, void)             \
    CALL(hipMalloc, device_pointer*, size_t)     \
    CALL(hipFree, device_pointer)                \
    CALL(hipMemGetInfo, size_t*, size_t*)        \
    CALL(hipMemset, device_pointer, int, size_t) \
    CALL(hipMemcpy, void*, device_pointer, size_t, int)
#else
#define LIBRARY "libascendcl.so"
#define CALLS(CALL)                                            \
    CALL(aclInit, const char*)                                 \
    CALL(aclFinalize, void)                                    \
    CALL(aclrtSetDevice, int32_t)                              \
    CALL(aclrtResetDeviceForce, int32_t)                       \
    CALL(aclrtSynchronizeDevice, void)                         \
    CALL(aclrtMalloc, device_pointer*, size_t, int)            \
    CALL(aclrtFree, device_pointer)                            \
    CALL(aclrtGetMemInfo, int, size_t*, size_t*)               \
    CALL(aclrtMemset, device_pointer, size_t, int32_t, size_t) \
    CALL(aclrtMemcpy, void*, size_t, device_pointer, size_t, int)
#endif
CALLS(CALL)
#undef CALL

static int load(void) {
    library = dlopen(LIBRARY, RTLD_NOW);
    if (!library) return 1;
#define CALL(name, ...) \
    if (!(*(void**)& name = dlsym(library, #name))) return 1;
    CALLS(CALL)
#undef CALL
    return 0;
}

#if defined(VENDOR_CUDA)
static void* context;

static int use(void) {
    return cuCtxSetCurrent(context);
}
static int begin(void) {
    int failed = cuInit(0);
    if (!failed) failed = cuDevicePrimaryCtxRetain(&context, 0);
    return failed ? failed : use();
}
static int reset(void) {
    return cuDevicePrimaryCtxReset_v2(0);
}
static int release(void) {
    return cuDevicePrimaryCtxRelease_v2(0);
}
static int synchronize(void) {
    return cuCtxSynchronize();
}
static int allocate(device_pointer* out, size_t size) {
    return cuMemAlloc_v2(out, size);
}
static int give_back(device_pointer at) {
    return cuMemFree_v2(at);
}
static int memory_left(size_t* left, size_t* all) {
    return cuMemGetInfo_v2(left, all);
}
static int fill(device_pointer at, unsigned char value, size_t size) {
    return cuMemsetD8_v2(at, value, size);
}
static int download(void* to, device_pointer from, size_t size) {
    return cuMemcpyDtoH_v2(to, from, size);
}
#elif defined(VENDOR_HIP)
enum { kToHost = 2 };

static int use(void) {
    return hipSetDevice(0);
}
static int begin(void) {
    return use();
}
static int reset(void) {
    return hipDeviceReset();
}
static int release(void) {
    return hipDeviceReset();
}  // HIP has no other way
static int synchronize(void) {
    return hipDeviceSynchronize();
}
static int allocate(device_pointer* out, size_t size) {
    return hipMalloc(out, size);
}
static int give_back(device_pointer at) {
    return hipFree(at);
}
static int memory_left(size_t* left, size_t* all) {
    return hipMemGetInfo(left, all);
}
static int fill(device_pointer at, unsigned char value, size_t size) {
    return hipMemset(at, value, size);
}
static int download(void* to, device_pointer from, size_t size) {
    return hipMemcpy(to, from, size, kToHost);
}
#else
enum { kToHost = 2, kHbm = 1 };

static int use(void) {
    return aclrtSetDevice(0);
}
static int begin(void) {
    int failed = aclInit(NULL);
    return failed ? failed : use();
}
static int reset(void) {
    return aclrtResetDeviceForce(0);
}
static int release(void) {
    return aclFinalize();
}
static int synchronize(void) {
    return aclrtSynchronizeDevice();
}
static int allocate(device_pointer* out, size_t size) {
    return aclrtMalloc(out, size, 0);
}
static int give_back(device_pointer at) {
    return aclrtFree(at);
}
static int memory_left(size_t* left, size_t* all) {
    return aclrtGetMemInfo(kHbm, left, all);
}
static int fill(device_pointer at, unsigned char value, size_t size) {
    return aclrtMemset(at, size, value, size);
}
static int download(void* to, device_pointer from, size_t size) {
    return aclrtMemcpy(to, size, from, size, kToHost);
}
#endif

#endif
