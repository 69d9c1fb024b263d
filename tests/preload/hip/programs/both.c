// SPDX-License-Identifier: Apache-2.0
//
// One process, two vendors: memory of CUDA's driver, opened, and of HIP's runtime, opened as well.
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { kBytes = 3 << 20 };

typedef int (*Function)();

static void* cuda;
static void* hip;

static int fill(const char* name, void* library, const char* copy, uint64_t address, unsigned char value) {
    static unsigned char bytes[kBytes];
    memset(bytes, value, sizeof bytes);
    Function function = (Function)dlsym(library, copy);
    int result = library == cuda ? function((void*)address, bytes, (size_t)kBytes)
                                 : function((void*)address, bytes, (size_t)kBytes, 1);
    if (result) printf("%s: %d\n", name, result);
    return result;
}

static unsigned sum(void* library, const char* copy, uint64_t address) {
    static unsigned char bytes[kBytes];
    memset(bytes, 0, sizeof bytes);
    Function function = (Function)dlsym(library, copy);
    int result = library == cuda ? function(bytes, (void*)address, (size_t)kBytes)
                                 : function(bytes, (void*)address, (size_t)kBytes, 2);
    unsigned total = (unsigned)result;
    for (size_t i = 0; i < kBytes; i++) total += bytes[i];
    return total;
}

int main(void) {
    uint64_t first = 0, second = 0;
    void* context = NULL;
    char line[64];
    cuda = dlopen("libcuda.so.1", RTLD_NOW);
    hip = dlopen("libamdhip64.so", RTLD_NOW);
    if (!cuda || !hip) return 1;
    ((Function)dlsym(cuda, "cuInit"))(0);
    ((Function)dlsym(cuda, "cuDevicePrimaryCtxRetain"))(&context, 0);
    ((Function)dlsym(cuda, "cuCtxSetCurrent"))(context);
    if (((Function)dlsym(cuda, "cuMemAlloc_v2"))(&first, (size_t)kBytes)) return 2;
    if (((Function)dlsym(hip, "hipMalloc"))(&second, (size_t)kBytes)) return 3;
    if (fill("cuda", cuda, "cuMemcpyHtoD_v2", first, 3) || fill("hip", hip, "hipMemcpy", second, 5)) return 4;
    puts("ready");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        printf("%u %u\n", sum(cuda, "cuMemcpyDtoH_v2", first), sum(hip, "hipMemcpy", second));
        fflush(stdout);
    }
    return 0;
}
