// SPDX-License-Identifier: Apache-2.0
//
// Allocations of every kind and what pointers into them are.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conformance.h"

// The size the driver reports for an allocation of `bytes`, and whether it begins where we were told.
static void range_of(size_t bytes) {
    CUdeviceptr pointer = 0, base = 0;
    size_t size = 0;
    char name[64];
    need("alloc", cuMemAlloc_v2(&pointer, bytes));
    CUresult result = cuMemGetAddressRange_v2(&base, &size, pointer);
    snprintf(name, sizeof name, "range_of_%zu", bytes);
    printf("alloc.%s: %d base %s size %zu aligned %d\n", name, result, base == pointer ? "same" : "other", size,
           pointer % 512 == 0);
    need("free", cuMemFree_v2(pointer));
}

static void bad_frees(void) {
    CUdeviceptr pointer = 0;
    int local = 0;
    need("alloc", cuMemAlloc_v2(&pointer, 8192));
    RESULT("free_interior", cuMemFree_v2(pointer + 256));
    RESULT("free", cuMemFree_v2(pointer));
    RESULT("free_twice", cuMemFree_v2(pointer));
    RESULT("free_null", cuMemFree_v2(0));
    RESULT("free_garbage", cuMemFree_v2(4096));
    RESULT("free_stack", cuMemFree_v2((CUdeviceptr)(uintptr_t)&local));
    void* host = NULL;
    need("host", cuMemHostAlloc(&host, 4096, 0));
    RESULT("free_host_memory", cuMemFree_v2((CUdeviceptr)(uintptr_t)host));
    RESULT("host_free_after", cuMemFreeHost(host));
}

static void ranges(void) {
    static const size_t sizes[] = {1,     100,     256, 512,     513,     1000,        4096,
                                   65536, MiB - 1, MiB, MiB + 1, 2 * MiB, 2 * MiB + 1, 5 * MiB};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) range_of(sizes[i]);
    CUdeviceptr pointer = 0, base = 0;
    size_t size = 0;
    need("alloc", cuMemAlloc_v2(&pointer, 4 * MiB));
    RESULT("range_interior", cuMemGetAddressRange_v2(&base, &size, pointer + 12345));
    VALUE("range_interior_base", base == pointer);
    VALUE("range_interior_size", size);
    RESULT("range_no_base", cuMemGetAddressRange_v2(NULL, &size, pointer));
    RESULT("range_no_size", cuMemGetAddressRange_v2(&base, NULL, pointer));
    RESULT("range_nothing", cuMemGetAddressRange_v2(NULL, NULL, pointer));
    RESULT("range_last_byte", cuMemGetAddressRange_v2(&base, &size, pointer + 4 * MiB - 1));
    need("free", cuMemFree_v2(pointer));
    RESULT("range_freed", cuMemGetAddressRange_v2(&base, &size, pointer));
    RESULT("range_null", cuMemGetAddressRange_v2(&base, &size, 0));
    RESULT("range_stack", cuMemGetAddressRange_v2(&base, &size, (CUdeviceptr)(uintptr_t)&size));
}

static void pitched(void) {
    CUdeviceptr pointer = 0;
    size_t pitch = 0;
    RESULT("pitch", cuMemAllocPitch_v2(&pointer, &pitch, 100, 10, 4));
    VALUE("pitch_value", pitch);
    RESULT("pitch_free", cuMemFree_v2(pointer));
    RESULT("pitch_element_3", cuMemAllocPitch_v2(&pointer, &pitch, 100, 10, 3));
    RESULT("pitch_width_0", cuMemAllocPitch_v2(&pointer, &pitch, 0, 10, 4));
    RESULT("pitch_height_0", cuMemAllocPitch_v2(&pointer, &pitch, 100, 0, 4));
    RESULT("pitch_null", cuMemAllocPitch_v2(&pointer, NULL, 100, 10, 4));
}

void allocations(void) {
    CUdeviceptr pointer = 77;
    size_t before, after, total;
    RESULT("zero", cuMemAlloc_v2(&pointer, 0));
    VALUE("zero_pointer_kept", pointer == 77);
    RESULT("null", cuMemAlloc_v2(NULL, 4096));
    RESULT("too_much", cuMemAlloc_v2(&pointer, (size_t)1 << 50));
    RESULT("absurd", cuMemAlloc_v2(&pointer, (size_t)-1));
    RESULT("info", cuMemGetInfo_v2(&before, &total));
    RESULT("info_null", cuMemGetInfo_v2(NULL, &total));
    need("alloc", cuMemAlloc_v2(&pointer, 64 * MiB));
    need("info", cuMemGetInfo_v2(&after, &total));
    VALUE("info_took_MiB", (before - after) / MiB);
    need("free", cuMemFree_v2(pointer));
    need("info", cuMemGetInfo_v2(&after, &total));
    VALUE("info_all_back", before == after);
    ranges();
    bad_frees();
    pitched();
    RESULT("managed_no_flags", cuMemAllocManaged(&pointer, 4096, 0));
    RESULT("managed_zero", cuMemAllocManaged(&pointer, 0, 1));
    RESULT("managed", cuMemAllocManaged(&pointer, 4096, 1));
    RESULT("managed_range", cuMemGetAddressRange_v2(&pointer, &total, pointer));
    VALUE("managed_range_size", total);
    RESULT("managed_free", cuMemFree_v2(pointer));
}

void pools(void) {
    void *pool = NULL, *other = NULL;
    CUdeviceptr pointer = 77, base = 0;
    size_t size = 0;
    uint64_t threshold = 99;
    int reuse = 99;
    RESULT("default", cuDeviceGetDefaultMemPool(&pool, 0));
    RESULT("current", cuDeviceGetMemPool(&other, 0));
    VALUE("current_is_default", pool == other);
    RESULT("default_null", cuDeviceGetDefaultMemPool(NULL, 0));
    RESULT("default_bad_device", cuDeviceGetDefaultMemPool(&pool, 4096));
    RESULT("threshold", cuMemPoolGetAttribute(pool, 4, &threshold));
    VALUE("threshold_value", threshold);
    RESULT("reuse", cuMemPoolGetAttribute(pool, 2, &reuse));
    VALUE("reuse_value", reuse);
    RESULT("attribute_unknown", cuMemPoolGetAttribute(pool, 4096, &threshold));
    threshold = 1 << 20;
    RESULT("threshold_set", cuMemPoolSetAttribute(pool, 4, &threshold));
    threshold = 0;
    need("threshold", cuMemPoolGetAttribute(pool, 4, &threshold));
    VALUE("threshold_after", threshold);
    threshold = 0;
    need("threshold", cuMemPoolSetAttribute(pool, 4, &threshold));
    RESULT("destroy_default", cuMemPoolDestroy(pool));
    RESULT("trim", cuMemPoolTrimTo(pool, 0));
    RESULT("alloc_zero", cuMemAllocAsync(&pointer, 0, NULL));
    RESULT("alloc_null", cuMemAllocAsync(NULL, 4096, NULL));
    RESULT("alloc_too_much", cuMemAllocAsync(&pointer, (size_t)1 << 50, NULL));
    RESULT("alloc", cuMemAllocAsync(&pointer, 5000, NULL));
    RESULT("range", cuMemGetAddressRange_v2(&base, &size, pointer));
    VALUE("range_base", base == pointer);
    VALUE("range_size", size);
    RESULT("memset", cuMemsetD8Async(pointer, 1, 5000, NULL));
    RESULT("free", cuMemFreeAsync(pointer, NULL));
    RESULT("synchronize", cuStreamSynchronize(NULL));
    RESULT("free_null", cuMemFreeAsync(0, NULL));
    need("alloc", cuMemAllocAsync(&pointer, 5000, NULL));
    RESULT("plain_free_of_pool_memory", cuMemFree_v2(pointer));
    need("alloc", cuMemAlloc_v2(&pointer, 5000));
    RESULT("async_free_of_plain_memory", cuMemFreeAsync(pointer, NULL));
    RESULT("synchronize_again", cuCtxSynchronize());
}

// ---- what a pool holds --------------------------------------------------------------------------------------------
// How much a pool reserves is its own affair, as long as that is enough.
static void counters(const char* when, void* pool) {
    enum { RESERVED, RESERVED_MOST, USED, USED_MOST, COUNTERS };
    uint64_t values[COUNTERS];
    for (int i = 0; i < COUNTERS; i++) need("counter", cuMemPoolGetAttribute(pool, 5 + i, &values[i]));
    printf("pool_memory.%s_used: %llu\n", when, (unsigned long long)values[USED]);
    printf("pool_memory.%s_used_most: %llu\n", when, (unsigned long long)values[USED_MOST]);
    printf("pool_memory.%s_enough: %d\n", when, values[RESERVED] >= values[USED]);
    printf("pool_memory.%s_enough_most: %d\n", when, values[RESERVED_MOST] >= values[USED_MOST]);
}

static void reserved(const char* when, void* pool) {
    uint64_t value = 99;
    need("reserved", cuMemPoolGetAttribute(pool, 5, &value));
    printf("pool_memory.%s_reserved: %llu\n", when, (unsigned long long)value);
}

static CUdeviceptr from_pool(size_t size, CUstream stream) {
    CUdeviceptr pointer = 0;
    need("alloc", cuMemAllocAsync(&pointer, size, stream));
    return pointer;
}

static void freed_at_once(void* pool, CUdeviceptr pointer) {
    uint64_t used = 99;
    need("free", cuMemFree_v2(pointer));
    need("used", cuMemPoolGetAttribute(pool, 7, &used));
    printf("pool_memory.freed_at_once_used: %llu\n", (unsigned long long)used);
}

static void reset_most(void* pool) {
    uint64_t zero = 0, one = 1;
    RESULT("set_reserved_most", cuMemPoolSetAttribute(pool, 6, &one));
    RESULT("reset_reserved_most", cuMemPoolSetAttribute(pool, 6, &zero));
    RESULT("reset_used_most", cuMemPoolSetAttribute(pool, 8, &zero));
    RESULT("set_used", cuMemPoolSetAttribute(pool, 7, &zero));
}

void pool_memory(void) {
    enum { MIB = 1 << 20 };
    void* pool = NULL;
    CUstream stream;
    need("pool", cuDeviceGetDefaultMemPool(&pool, 0));
    need("stream", cuStreamCreate(&stream, 1));
    counters("empty", pool);
    reserved("empty", pool);
    CUdeviceptr small = from_pool(5000, stream), large = from_pool(40 * MIB, stream), odd = from_pool(MIB + 1, stream);
    counters("three", pool);
    need("free", cuMemFreeAsync(large, stream));
    counters("freed", pool);
    need("free", cuMemFreeAsync(odd, stream));
    need("free", cuMemFreeAsync(small, stream));
    counters("all_freed", pool);
    need("synchronize", cuStreamSynchronize(stream));
    counters("all_waited", pool);
    reserved("all_waited", pool);
    reset_most(pool);
    counters("reset", pool);
    large = from_pool(100 * MIB, stream);
    need("free", cuMemFreeAsync(large, stream));
    need("synchronize", cuCtxSynchronize());
    RESULT("trim", cuMemPoolTrimTo(pool, 0));
    counters("trimmed", pool);
    reserved("trimmed", pool);
    freed_at_once(pool, from_pool(MIB + 1, stream));
}

void host_memory(void) {
    void *host = NULL, *plain = aligned_alloc(4096, 4 * 4096);
    CUdeviceptr device = 0;
    unsigned flags = 99;
    RESULT("alloc_zero", cuMemHostAlloc(&host, 0, 0));
    VALUE("alloc_zero_pointer", host != NULL);
    RESULT("alloc_null", cuMemHostAlloc(NULL, 4096, 0));
    RESULT("alloc_bad_flags", cuMemHostAlloc(&host, 4096, 0x100));
    RESULT("alloc", cuMemHostAlloc(&host, 8192, 1));
    memset(host, 1, 8192);
    RESULT("flags", cuMemHostGetFlags(&flags, host));
    VALUE("flags_value", flags);
    RESULT("flags_of_plain", cuMemHostGetFlags(&flags, plain));
    RESULT("device_pointer", cuMemHostGetDevicePointer_v2(&device, host, 0));
    VALUE("device_pointer_same", device == (CUdeviceptr)(uintptr_t)host);
    RESULT("device_pointer_interior", cuMemHostGetDevicePointer_v2(&device, (char*)host + 100, 0));
    VALUE("device_pointer_interior_same", device == (CUdeviceptr)(uintptr_t)host + 100);
    RESULT("device_pointer_flags", cuMemHostGetDevicePointer_v2(&device, host, 1));
    RESULT("device_pointer_of_plain", cuMemHostGetDevicePointer_v2(&device, plain, 0));
    RESULT("free_interior", cuMemFreeHost((char*)host + 4096));
    RESULT("unregister_allocated", cuMemHostUnregister(host));
    RESULT("free", cuMemFreeHost(host));
    RESULT("free_twice", cuMemFreeHost(host));
    RESULT("free_null", cuMemFreeHost(NULL));
    RESULT("free_plain", cuMemFreeHost(plain));
    RESULT("register", cuMemHostRegister_v2(plain, 8192, 0));
    RESULT("register_twice", cuMemHostRegister_v2(plain, 8192, 0));
    RESULT("register_overlap", cuMemHostRegister_v2((char*)plain + 4096, 8192, 0));
    RESULT("register_flags", cuMemHostGetFlags(&flags, plain));
    VALUE("register_flags_value", flags);
    RESULT("register_device_pointer", cuMemHostGetDevicePointer_v2(&device, plain, 0));
    RESULT("free_registered", cuMemFreeHost(plain));
    RESULT("unregister_interior", cuMemHostUnregister((char*)plain + 4096));
    RESULT("unregister", cuMemHostUnregister(plain));
    RESULT("unregister_twice", cuMemHostUnregister(plain));
    RESULT("register_zero", cuMemHostRegister_v2(plain, 0, 0));
    RESULT("register_null", cuMemHostRegister_v2(NULL, 4096, 0));
    RESULT("register_bad_flags", cuMemHostRegister_v2(plain, 4096, 0x100));
    RESULT("register_unaligned", cuMemHostRegister_v2((char*)plain + 8, 100, 0));
    RESULT("unregister_unaligned", cuMemHostUnregister((char*)plain + 8));
    need("alloc", cuMemAlloc_v2(&device, 4096));
    RESULT("register_device_memory", cuMemHostRegister_v2((void*)(uintptr_t)device, 4096, 0));
    need("free", cuMemFree_v2(device));
    free(plain);
}

// ---- attributes ---------------------------------------------------------------------------------------------------
// An answer, and how many bytes of it the driver wrote: the program must have room for as many.
struct answer {
    CUresult result;
    uint64_t value;
    unsigned written;
};

static struct answer ask(int attribute, CUdeviceptr pointer) {
    unsigned char bytes[64], untouched = 0xa5;
    struct answer answer = {0, 0, sizeof bytes};
    memset(bytes, untouched, sizeof bytes);
    answer.result = cuPointerGetAttribute(bytes, attribute, pointer);
    while (answer.written && bytes[answer.written - 1] == untouched) answer.written--;
    if (!answer.result) memcpy(&answer.value, bytes, answer.written < 8 ? answer.written : 8);
    return answer;
}

static const char* named(uint64_t value, CUdeviceptr pointer, CUdeviceptr base) {
    if (value == 77) return "kept";
    if (!value) return "null";
    if (value == pointer) return "itself";
    return value == base ? "base" : "other";
}

static void attributes(const char* kind, CUdeviceptr pointer, CUdeviceptr base, CUcontext context) {
    static const int numbers[] = {2, 6, 8, 9, 10, 12, 13, 14, 15, 16}, addresses[] = {3, 4, 11};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        struct answer seen = ask(numbers[i], pointer);
        printf("pointer.%s_%d: %d value %llu in %u\n", kind, numbers[i], seen.result, (unsigned long long)seen.value,
               seen.written);
    }
    for (size_t i = 0; i < sizeof addresses / sizeof *addresses; i++) {
        struct answer seen = ask(addresses[i], pointer);
        const char* what = seen.result ? "-" : named(seen.value, pointer, base);
        printf("pointer.%s_%d: %d %s in %u\n", kind, addresses[i], seen.result, what, seen.written);
    }
    struct answer owner = ask(1, pointer), number = ask(7, pointer), pool = ask(17, pointer);
    int ours = owner.value == (uint64_t)(uintptr_t)context;
    printf("pointer.%s_1: %d %s in %u\n", kind, owner.result, owner.result ? "-" : named(ours ? 1 : owner.value, 1, 0),
           owner.written);
    printf("pointer.%s_7: %d in %u\n", kind, number.result, number.written);
    printf("pointer.%s_17: %d %s in %u\n", kind, pool.result, pool.value ? "pool" : "null", pool.written);
}

// The block of device memory that holds an allocation.
static void block(const char* kind, CUdeviceptr pointer, CUdeviceptr base) {
    struct answer size = ask(18, pointer), start = ask(19, pointer);
    printf("pointer.%s_18: %d value %llu\n", kind, size.result, (unsigned long long)size.value);
    printf("pointer.%s_19: %d %s\n", kind, start.result, named(start.value, pointer, base));
}

static void plural(const char* kind, CUdeviceptr pointer, CUcontext context) {
    int wanted[] = {1, 2, 8, 9, 13, 3, 11, 12, 4};
    uint64_t seen[9] = {77, 77, 77, 77, 77, 77, 77, 77, 77};
    void* out[9];
    for (int i = 0; i < 9; i++) out[i] = &seen[i];
    CUresult result = cuPointerGetAttributes(9, wanted, out, pointer);
    int ours = seen[0] == (uint64_t)(uintptr_t)context;
    printf("pointer.all_%s: %d context %s type %u managed %u ordinal %d mapped %u\n", kind, result,
           named(ours ? 1 : seen[0], 1, 0), (unsigned)seen[1], (unsigned char)seen[2], (int)seen[3],
           (unsigned char)seen[4]);
    printf("pointer.all_addresses_%s: device %s start %s size %s host %s\n", kind, named(seen[5], pointer, 0),
           named(seen[6], pointer, pointer - 100),
           seen[7] == 77 ? "kept"
           : seen[7]     ? "set"
                         : "0",
           named(seen[8], pointer, 0));
}

void pointers(void) {
    CUcontext context;
    CUdeviceptr device = 0, managed = 0, pooled = 0;
    void *host = NULL, *plain = aligned_alloc(4096, 8192);
    int type;
    need("context", cuCtxGetCurrent(&context));
    need("alloc", cuMemAlloc_v2(&device, 5000));
    need("host", cuMemHostAlloc(&host, 8192, 0));
    need("managed", cuMemAllocManaged(&managed, 5000, 1));
    need("pooled", cuMemAllocAsync(&pooled, 5000, NULL));
    attributes("device", device, device, context);
    attributes("interior", device + 100, device, context);
    block("device", device, device);
    block("interior", device + 100, device);
    attributes("host", (CUdeviceptr)(uintptr_t)host, (CUdeviceptr)(uintptr_t)host, context);
    attributes("plain", (CUdeviceptr)(uintptr_t)plain, 0, context);
    attributes("managed", managed, managed, context);
    attributes("pooled", pooled, pooled, context);
    attributes("null", 0, 0, context);
    plural("device", device + 100, context);
    plural("host", (CUdeviceptr)(uintptr_t)host, context);
    plural("plain", (CUdeviceptr)(uintptr_t)plain, context);
    plural("null", 0, context);
    RESULT("attribute_0", cuPointerGetAttribute(&type, 0, device));
    RESULT("attribute_unknown", cuPointerGetAttribute(&type, 4096, device));
    RESULT("attribute_null_out", cuPointerGetAttribute(NULL, 2, device));
    need("register", cuMemHostRegister_v2(plain, 8192, 0));
    attributes("registered", (CUdeviceptr)(uintptr_t)plain, (CUdeviceptr)(uintptr_t)plain, context);
    need("unregister", cuMemHostUnregister(plain));
    need("free", cuMemFreeAsync(pooled, NULL));
    need("free", cuMemFree_v2(device));
    need("free", cuMemFree_v2(managed));
    need("free", cuMemFreeHost(host));
    RESULT("type_of_freed", cuPointerGetAttribute(&type, 2, device));
    free(plain);
}

void interprocess(void) {
    CUdeviceptr device = 0, opened = 0;
    CUipcMemHandle handle = {{0}}, again = {{0}};
    void* host = NULL;
    need("alloc", cuMemAlloc_v2(&device, 4 * MiB));
    need("host", cuMemHostAlloc(&host, 4096, 0));
    RESULT("get", cuIpcGetMemHandle(&handle, device));
    RESULT("get_interior", cuIpcGetMemHandle(&again, device + 4096));
    RESULT("get_null_out", cuIpcGetMemHandle(NULL, device));
    RESULT("get_null_pointer", cuIpcGetMemHandle(&again, 0));
    RESULT("get_host", cuIpcGetMemHandle(&again, (CUdeviceptr)(uintptr_t)host));
    RESULT("open_own", cuIpcOpenMemHandle_v2(&opened, handle, 1));
    RESULT("open_bad_flags", cuIpcOpenMemHandle_v2(&opened, handle, 2));
    RESULT("close_not_opened", cuIpcCloseMemHandle(device));
    need("free", cuMemFreeHost(host));
    need("free", cuMemFree_v2(device));
}
