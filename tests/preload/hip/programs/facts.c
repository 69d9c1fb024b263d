// SPDX-License-Identifier: Apache-2.0
//
// What a program is told of its memory: the same bare and under the shim, but for addresses, which are told relatively.
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
    printf("reset %d", hipDeviceReset());
    printf(" attributes %d type %u\n", hipPointerGetAttributes(&all, here), all.type);
}

int main(void) {
    static const size_t sizes[] = {0, 1, 512, 4096, 1 << 20, (1 << 20) + 1, 3 << 20};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) plain(sizes[i]);
    others();
    peers();
    return 0;
}
