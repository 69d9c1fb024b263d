// SPDX-License-Identifier: Apache-2.0
//
// Memory between processes: each line is a word and what it is about, called by a letter; each gets one line back, the
// runtime's number first. The same lines say the same bare and under the shim.
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "abi/hip.h"

enum { kBytes = 4 << 20, kLetters = 128, kOpenPid = 434, kGetDescriptor = 438, kByValue = 70100000 };

extern hipError_t hipRuntimeGetVersion(int* version);
extern hipError_t hipMemAddressReserve(void** out, size_t size, size_t alignment, void* hint, unsigned long long flags);
extern hipError_t hipMemCreate(hipMemGenericAllocationHandle_t* out, size_t size, const hipMemAllocationProp* wanted,
                               unsigned long long flags);
extern hipError_t hipMemRelease(hipMemGenericAllocationHandle_t handle);
extern hipError_t hipMemMap(void* to, size_t size, size_t offset, hipMemGenericAllocationHandle_t handle,
                            unsigned long long flags);
extern hipError_t hipMemUnmap(void* from, size_t size);
extern hipError_t hipMemSetAccess(void* to, size_t size, const hipMemAccessDesc* wanted, size_t count);
extern hipError_t hipMemExportToShareableHandle(void* out, hipMemGenericAllocationHandle_t handle,
                                                hipMemAllocationHandleType type, unsigned long long flags);
extern hipError_t hipMemImportFromShareableHandle(hipMemGenericAllocationHandle_t* out, void* shared,
                                                  hipMemAllocationHandleType type);
extern hipError_t hipMemcpy(void* to, const void* from, size_t size, hipMemcpyKind kind);
extern hipError_t hipGetLastError(void);

static hipMemGenericAllocationHandle_t handles[kLetters];
static void* places[kLetters];
static int files[kLetters];
static unsigned char bytes[kBytes];

static hipError_t create(char to, int exportable) {
    hipMemAllocationProp wanted = {.type = hipMemAllocationTypePinned, .location = {hipMemLocationTypeDevice, 0}};
    wanted.requestedHandleType = exportable ? hipMemHandleTypePosixFileDescriptor : hipMemHandleTypeNone;
    return hipMemCreate(&handles[(int)to], kBytes, &wanted, 0);
}

static hipError_t map(char to, char handle) {
    hipMemAccessDesc wanted = {{hipMemLocationTypeDevice, 0}, hipMemAccessFlagsProtReadWrite};
    void** place = &places[(int)to];
    hipError_t result = *place ? hipSuccess : hipMemAddressReserve(place, kBytes, 0, NULL, 0);
    if (result == hipSuccess) result = hipMemMap(*place, kBytes, 0, handles[(int)handle], 0);
    return result == hipSuccess ? hipMemSetAccess(*place, kBytes, &wanted, 1) : result;
}

static hipError_t fill(char where, int value) {
    memset(bytes, value, sizeof bytes);
    return hipMemcpy(places[(int)where], bytes, sizeof bytes, hipMemcpyHostToDevice);
}

// -1: not all bytes are that.
static int check(char where, int value) {
    memset(bytes, ~value, sizeof bytes);
    hipError_t result = hipMemcpy(bytes, places[(int)where], sizeof bytes, hipMemcpyDeviceToHost);
    for (size_t i = 0; i < sizeof bytes; i++)
        if (result == hipSuccess && bytes[i] != (unsigned char)value) return -1;
    return (int)result;
}

// A descriptor's value since 7.1, before that its address.
static hipError_t import(char to, char file) {
    int version = 0;
    hipRuntimeGetVersion(&version);
    int* number = &files[(int)file];
    void* given = version >= kByValue ? (void*)(intptr_t)*number : number;
    return hipMemImportFromShareableHandle(&handles[(int)to], given, hipMemHandleTypePosixFileDescriptor);
}

static int fetch(char to, int pid, int number) {
    long process = syscall(kOpenPid, pid, 0);
    files[(int)to] = (int)syscall(kGetDescriptor, process, number, 0);
    close((int)process);
    return files[(int)to] < 0;
}

// What stands in a line after its word: letters, or a letter and numbers.
static int answer(const char* word, char first, char second, int one, int two) {
    if (!strcmp(word, "create")) return (int)create(first, 1);
    if (!strcmp(word, "private")) return (int)create(first, 0);
    if (!strcmp(word, "release")) return (int)hipMemRelease(handles[(int)first]);
    if (!strcmp(word, "map")) return (int)map(first, second);
    if (!strcmp(word, "unmap")) return (int)hipMemUnmap(places[(int)first], kBytes);
    if (!strcmp(word, "fill")) return (int)fill(first, one);
    if (!strcmp(word, "check")) return check(first, one);
    if (!strcmp(word, "export"))
        return (int)hipMemExportToShareableHandle(&files[(int)first], handles[(int)second],
                                                  hipMemHandleTypePosixFileDescriptor, 0);
    if (!strcmp(word, "import")) return (int)import(first, second);
    if (!strcmp(word, "same")) return handles[(int)first] == handles[(int)second];
    if (!strcmp(word, "fetch")) return fetch(first, one, two);
    if (!strcmp(word, "file")) return (files[(int)first] = open("/proc/self/exe", O_RDONLY)) < 0;
    if (!strcmp(word, "set")) return (files[(int)first] = one) != one;
    if (!strcmp(word, "close")) return close(files[(int)first]);
    if (!strcmp(word, "numberof")) return files[(int)first];
    return -2;
}

int main(void) {
    char line[64], word[16], first, second;
    while (fgets(line, sizeof line, stdin)) {
        int one = 0, two = 0;
        first = second = 0;
        if (sscanf(line, "%15s %c %d %d", word, &first, &one, &two) < 3)
            sscanf(line, "%15s %c %c", word, &first, &second);
        int said = answer(word, first, second, one, two);
        printf("%d last %d\n", said, hipGetLastError());
        fflush(stdout);
    }
    return 0;
}
