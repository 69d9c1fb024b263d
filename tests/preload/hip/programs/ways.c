// SPDX-License-Identifier: Apache-2.0
//
// Every way a program comes by hipMalloc. Prints for each whether the shim served it: memory of the shim's is mapped
// physical memory, of which the simulated runtime gives no legacy IPC handle, so that the shim makes one of its own. Linked
// to the runtime, or with WAY=absent to nothing at all.
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "abi/hip.h"

typedef hipError_t (*Malloc)(void** out, size_t size);

#ifdef ABSENT
int main(void) {
    void* handle = dlopen(NULL, RTLD_NOW);
    printf("default %d\n", dlsym(RTLD_DEFAULT, "hipMalloc") != NULL);
    printf("message %d\n", dlerror() != NULL);
    printf("program %d\n", dlsym(handle, "hipMalloc") != NULL);
    printf("message %d\n", dlerror() != NULL);
    printf("next %d\n", dlsym(RTLD_NEXT, "hipMalloc") != NULL);
    return 0;
}
#else
extern hipError_t hipMalloc(void** out, size_t size);
extern hipError_t hipFree(void* pointer);
extern hipError_t hipMemAllocPitch(hipDeviceptr_t* out, size_t* pitch, size_t width, size_t height, unsigned element);
extern hipError_t hipIpcGetMemHandle(hipIpcMemHandle_t* handle, void* pointer);
extern hipError_t hipGetProcAddress(const char* name, void** out, int version, uint64_t flags, unsigned* status);
extern hipError_t hipGetLastError(void);

static void say(const char* way, Malloc function) {
    void* pointer = NULL;
    hipIpcMemHandle_t handle;
    hipError_t result = function ? function(&pointer, 4 << 20) : -1;
    hipError_t asked = result ? -1 : hipIpcGetMemHandle(&handle, pointer);
    hipGetLastError();
    printf("%s %d %s\n", way, result, asked == hipSuccess && memcmp(&handle, "HCSIMIPC", 8) == 0 ? "runtime" : "shim");
    if (!result) hipFree(pointer);
}

// The runtime's own call of hipMallocPitch, through the PLT, from a call that the shim passed on to it.
static hipError_t from_inside(void** out, size_t size) {
    size_t pitch;
    return hipMemAllocPitch((hipDeviceptr_t*)out, &pitch, 4096, size / 4096, 2);
}

int main(void) {
    void* opened = dlopen("libamdhip64.so.7", RTLD_NOW);
    void *plain = NULL, *threads = NULL, *memcpy_spt = NULL;
    unsigned status = 9;
    say("linked", hipMalloc);
    say("handle", (Malloc)dlsym(opened, "hipMalloc"));
    say("version", (Malloc)dlvsym(opened, "hipMalloc", "hip_4.2"));
    say("default", (Malloc)dlsym(RTLD_DEFAULT, "hipMalloc"));
    say("next", (Malloc)dlsym(RTLD_NEXT, "hipMalloc"));
    hipGetProcAddress("hipMalloc", &plain, 70200, 0, &status);
    say("asked", (Malloc)plain);
    hipGetProcAddress("hipMemcpy", &plain, 70200, 0, &status);
    hipGetProcAddress("hipMemcpy", &threads, 70200, 2, &status);
    memcpy_spt = dlsym(opened, "hipMemcpy_spt");
    say("inside", from_inside);
    printf("variants %d %d\n", plain != threads, threads == memcpy_spt);
    return 0;
}
#endif
