// SPDX-License-Identifier: Apache-2.0
//
// A program linked with libcuda.so.1: no lookups at all. Prints what the driver was given, and whether errno survived.
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

struct bytes64 {
    char bytes[64];
};
struct location {
    int type, id;
};
struct frame {
    char bytes[64];
};

extern const char* driver_last;
extern unsigned char driver_bytes[256];
extern int driver_result;
int cuInit(unsigned);
int cuMemAlloc_v2(unsigned long long*, size_t);
int cuCtxSynchronize(void);
int cuGreenCtxCreate(void*, void*, int, unsigned);
int cuIpcOpenMemHandle_v2(unsigned long long*, struct bytes64, unsigned);
int cuMemPrefetchAsync_v2(unsigned long long, size_t, struct location, unsigned, void*);
int cuEGLStreamProducerPresentFrame(void*, struct frame, void**);
int cuLaunchKernel(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**);

static void say(const char* what, int result) {
    printf("%s = %d: %s [%s] errno %d\n", what, result, driver_last, driver_bytes, errno);
}

int main() {
    errno = 77;
    say("cuInit", cuInit(0));
    unsigned long long at = 0;
    say("cuMemAlloc_v2", cuMemAlloc_v2(&at, 4096));
    say("cuCtxSynchronize", cuCtxSynchronize());
    driver_result = 801;
    say("refused", cuGreenCtxCreate(0, 0, 0, 0));
    driver_result = 0;
    say("cuGreenCtxCreate", cuGreenCtxCreate(0, 0, 0, 0));
    struct bytes64 handle = {"sixty-four bytes by value, of which the wrapper must lose none.."};
    say("cuIpcOpenMemHandle_v2", cuIpcOpenMemHandle_v2(&at, handle, 9));
    printf("%llu\n", at);
    struct frame frame = {"planes, sizes, formats: sixty-four bytes by value, once again..."};
    void* stream = 0;
    say("cuEGLStreamProducerPresentFrame", cuEGLStreamProducerPresentFrame((void*)5, frame, &stream));
    printf("%p\n", stream);
    struct location where = {3, -4};
    say("cuMemPrefetchAsync_v2", cuMemPrefetchAsync_v2(0x123456789abcull, 0x1000000001ull, where, 6, (void*)7));
    say("cuLaunchKernel", cuLaunchKernel((void*)1, 2, 3, 4, 5, 6, 7, 8, (void*)9, (void**)10, (void**)11));
    unsigned (*noted)(unsigned) = dlsym(RTLD_DEFAULT, "standin_noted");
    unsigned (*answered)(void) = dlsym(RTLD_DEFAULT, "standin_answered");
    if (noted) fprintf(stderr, "green %u answered %u\n", noted(16), answered());
    return 0;
}
