// SPDX-License-Identifier: Apache-2.0
//
// What a program is told of its memory: the same bare and under the shim, but for addresses, which are told relatively.
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "abi/hip.h"

extern hipError_t hipMalloc(void** out, size_t size);
extern hipError_t hipFree(void* pointer);
extern hipError_t hipFreeAsync(void* pointer, hipStream_t stream);
extern hipError_t hipMallocPitch(void** out, size_t* pitch, size_t width, size_t height);
extern hipError_t hipMallocManaged(void** out, size_t size, unsigned flags);
extern hipError_t hipMallocAsync(void** out, size_t size, hipStream_t stream);
extern hipError_t hipMallocFromPoolAsync(void** out, size_t size, hipMemPool_t pool, hipStream_t stream);
extern hipError_t hipMemPoolCreate(hipMemPool_t* pool, const hipMemPoolProps* wanted);
extern hipError_t hipMemPoolDestroy(hipMemPool_t pool);
extern hipError_t hipMemPoolTrimTo(hipMemPool_t pool, size_t keep);
extern hipError_t hipMemPoolGetAttribute(hipMemPool_t pool, hipMemPoolAttr attribute, void* value);
extern hipError_t hipMemPoolSetAttribute(hipMemPool_t pool, hipMemPoolAttr attribute, void* value);
extern hipError_t hipDeviceGetMemPool(hipMemPool_t* pool, int device);
extern hipError_t hipMemsetAsync(void* to, int value, size_t size, hipStream_t stream);
extern hipError_t hipStreamSynchronize(hipStream_t stream);
extern hipError_t hipStreamDestroy(hipStream_t stream);
extern hipError_t hipHostMalloc(void** out, size_t size, unsigned flags);
extern hipError_t hipHostFree(void* pointer);
extern hipError_t hipMemcpy(void* to, const void* from, size_t size, hipMemcpyKind kind);
extern hipError_t hipMemPtrGetInfo(void* pointer, size_t* size);
extern hipError_t hipMemGetAddressRange(hipDeviceptr_t* base, size_t* size, hipDeviceptr_t pointer);
extern hipError_t hipPointerGetAttributes(hipPointerAttribute_t* out, const void* pointer);
extern hipError_t hipPointerGetAttribute(void* out, hipPointer_attribute attribute, hipDeviceptr_t pointer);
extern hipError_t hipSetDevice(int device);
extern hipError_t hipGetDevice(int* device);
extern hipError_t hipDeviceReset(void);
extern hipError_t hipDevicePrimaryCtxReset(int device);
extern hipError_t hipDeviceEnablePeerAccess(int peer, unsigned flags);
extern hipError_t hipDeviceDisablePeerAccess(int peer);
extern hipError_t hipGetLastError(void);
extern hipError_t hipPeekAtLastError(void);
extern hipError_t hipStreamCreate(hipStream_t* stream);
extern hipError_t hipStreamBeginCapture(hipStream_t stream, hipStreamCaptureMode mode);
extern hipError_t hipStreamEndCapture(hipStream_t stream, hipGraph_t* graph);

static void attributes(const char* name, void* pointer) {
    hipPointerAttribute_t all;
    size_t size = 0;
    unsigned long long start = 0;
    void* base = NULL;
    memset(&all, 0, sizeof all);
    hipError_t result = hipPointerGetAttributes(&all, pointer);
    printf("%s attributes %d type %u device %d same %d host %d\n", name, result, all.type, all.device,
           all.devicePointer == pointer, all.hostPointer != NULL);
    result = hipMemGetAddressRange(&base, &size, (char*)pointer + 8);
    printf("%s range %d", name, result);
    if (result == hipSuccess) printf(" %ld %zu", (long)((char*)pointer - (char*)base), size);
    printf("\n");
    result = hipMemPtrGetInfo(pointer, &size);
    printf("%s info %d %zu\n", name, result, size);
    result = hipPointerGetAttribute(&start, HIP_POINTER_ATTRIBUTE_RANGE_START_ADDR, (char*)pointer + 16);
    printf("%s start %d %d\n", name, result, start == (unsigned long long)pointer);
    result = hipPointerGetAttribute(&size, HIP_POINTER_ATTRIBUTE_RANGE_SIZE, pointer);
    printf("%s size %d %zu\n", name, result, size);
    printf("%s last error %d\n", name, hipPeekAtLastError());
}

static void plain(size_t size) {
    char name[32];
    void* pointer = NULL;
    snprintf(name, sizeof name, "plain %zu", size);
    printf("%s %d null %d\n", name, hipMalloc(&pointer, size), pointer == NULL);
    if (pointer) attributes(name, pointer);
    printf("%s free %d again %d\n", name, hipFree(pointer), pointer ? hipFree(pointer) != hipSuccess : 0);
    hipGetLastError();
}

static void others(void) {
    void* pointer = NULL;
    size_t pitch = 0;
    hipStream_t stream;
    printf("pitch %d", hipMallocPitch(&pointer, &pitch, 1000, 10));
    printf(" %zu free %d\n", pitch, hipFree(pointer));
    printf("managed %d", hipMallocManaged(&pointer, 4096, hipMemAttachGlobal));
    printf(" free %d\n", hipFree(pointer));
    printf("host %d", hipHostMalloc(&pointer, 4096, 0));
    printf(" free %d\n", hipHostFree(pointer));
    hipStreamCreate(&stream);
    printf("async %d", hipMallocAsync(&pointer, 4096, stream));
    printf(" free %d\n", hipFreeAsync(pointer, stream));
    hipMalloc(&pointer, 4096);
    printf("plain freed in a stream %d\n", hipFreeAsync(pointer, stream));
    printf("too much %d last %d then %d\n", hipMalloc(&pointer, 1ull << 50), hipGetLastError(), hipPeekAtLastError());
    printf("null %d last %d\n", hipMalloc(NULL, 4096), hipGetLastError());
    hipGraph_t graph;
    printf("capture %d", hipStreamBeginCapture(stream, hipStreamCaptureModeGlobal));
    printf(" malloc %d", hipMalloc(&pointer, 4096));
    printf(" end %d\n", hipStreamEndCapture(stream, &graph));
    hipGetLastError();
}

static void pool_of(const char* name, void* pointer, hipMemPool_t pool) {
    hipMemPool_t found = NULL;
    unsigned capable = 7;
    printf("%s pool %d", name, hipPointerGetAttribute(&found, HIP_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, pointer));
    printf(" right %d", found == pool);
    printf(" capable %d", hipPointerGetAttribute(&capable, HIP_POINTER_ATTRIBUTE_IS_LEGACY_HIP_IPC_CAPABLE, pointer));
    printf(" %u\n", capable);
}

static void ordered(const char* name, hipMemPool_t pool, bool named) {
    void *first = NULL, *second = NULL;
    char back[64] = {0};
    hipStream_t stream;
    hipStreamCreate(&stream);
    printf("%s stream %d", name, hipStreamCreate(&stream));
    printf(" %d", named ? hipMallocFromPoolAsync(&first, 5000, pool, stream) : hipMallocAsync(&first, 5000, stream));
    printf(" %d\n",
           named ? hipMallocFromPoolAsync(&second, 3 << 20, pool, stream) : hipMallocAsync(&second, 3 << 20, stream));
    attributes(name, first);
    pool_of(name, second, pool);
    printf("%s set %d", name, hipMemsetAsync(first, 5, 5000, stream));
    printf(" copied %d", hipMemcpy(second, first, sizeof back, hipMemcpyDeviceToDevice));
    printf(" wait %d", hipStreamSynchronize(stream));
    printf(" read %d is %d\n", hipMemcpy(back, first, sizeof back, hipMemcpyDeviceToHost), back[63]);
    printf("%s free %d", name, hipFreeAsync(first, stream));
    printf(" destroyed %d", hipStreamDestroy(stream));
    printf(" plain %d again %d\n", hipFree(second), hipFree(second) != hipSuccess);
    hipGetLastError();
}

static void beside_a_capture(void) {
    void *before = NULL, *meanwhile = NULL;
    hipStream_t stream, captured;
    hipGraph_t graph = NULL;
    hipStreamCreate(&stream);
    hipStreamCreate(&captured);
    printf("beside a capture %d", hipMallocAsync(&before, 5000, stream));
    printf(" begun %d", hipStreamBeginCapture(captured, hipStreamCaptureModeGlobal));
    printf(" %d", hipMallocAsync(&meanwhile, 40 << 20, stream));
    printf(" freed %d %d", hipFreeAsync(before, stream), hipFreeAsync(meanwhile, stream));
    printf(" stream destroyed %d", hipStreamDestroy(stream));
    printf(" ended %d\n", hipStreamEndCapture(captured, &graph));
}

static void pools(void) {
    hipMemPoolProps wanted = {.allocType = hipMemAllocationTypePinned, .location = {hipMemLocationTypeDevice, 0}};
    hipMemPool_t pool = NULL;
    uint64_t threshold = 12345, read = 0;
    void* pointer = NULL;
    printf("pool of the device %d\n", hipDeviceGetMemPool(&pool, 0));
    ordered("device", pool, false);
    printf("pool %d", hipMemPoolCreate(&pool, &wanted));
    printf(" set %d", hipMemPoolSetAttribute(pool, hipMemPoolAttrReleaseThreshold, &threshold));
    printf(" get %d", hipMemPoolGetAttribute(pool, hipMemPoolAttrReleaseThreshold, &read));
    printf(" %lu\n", (unsigned long)read);
    ordered("made", pool, true);
    printf("trim %d destroy %d", hipMemPoolTrimTo(pool, 0), hipMemPoolDestroy(pool));
    printf(" again %d", hipMemPoolDestroy(pool) != hipSuccess);
    printf(" from it %d\n", hipMallocFromPoolAsync(&pointer, 100, pool, NULL) != hipSuccess);
    printf("too much %d", hipMallocAsync(&pointer, 100, NULL));
    printf(" %d", hipMallocAsync(&pointer, (size_t)1 << 41, NULL));
    printf(" %d\n", hipMallocAsync(&pointer, SIZE_MAX - 99, NULL));
    beside_a_capture();
    printf("no stream %d", hipMallocAsync(&pointer, 100, NULL));
    printf(" %d\n", hipFreeAsync(pointer, NULL));
    hipGetLastError();
}

static void peers(void) {
    void *here = NULL, *there = NULL;
    char bytes[64], back[64] = {0};
    memset(bytes, 7, sizeof bytes);
    hipSetDevice(1);
    hipMalloc(&there, 4096);
    hipSetDevice(0);
    hipMalloc(&here, 4096);
    printf("peer %d again %d\n", hipDeviceEnablePeerAccess(1, 0), hipDeviceEnablePeerAccess(1, 0));
    hipMemcpy(here, bytes, sizeof bytes, hipMemcpyHostToDevice);
    printf("peer copy %d", hipMemcpy(there, here, sizeof bytes, hipMemcpyDeviceToDevice));
    printf(" %d same %d\n", hipMemcpy(back, there, sizeof back, hipMemcpyDeviceToHost), !memcmp(back, bytes, 64));
    printf("peer off %d again %d\n", hipDeviceDisablePeerAccess(1), hipDeviceDisablePeerAccess(1));
    hipGetLastError();
    hipPointerAttribute_t all = {0};
    printf("primary %d", hipDevicePrimaryCtxReset(0));
    printf(" read %d same %d\n", hipMemcpy(back, here, sizeof back, hipMemcpyDeviceToHost), !memcmp(back, bytes, 64));
    printf("reset %d", hipDeviceReset());
    printf(" attributes %d type %u\n", hipPointerGetAttributes(&all, here), all.type);
}

int main(void) {
    static const size_t sizes[] = {0, 1, 512, 4096, 1 << 20, (1 << 20) + 1, 3 << 20};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) plain(sizes[i]);
    others();
    pools();
    peers();
    return 0;
}
