// SPDX-License-Identifier: Apache-2.0
//
// Before there is a context; devices; how names resolve.
#include <dlfcn.h>
#include <string.h>

#include "conformance.h"

void before_context(void) {
    int number = -1;
    RESULT("device_count_before_init", cuDeviceGetCount(&number));
    RESULT("init_flags", cuInit(1));
    RESULT("init", cuInit(0));
    RESULT("init_again", cuInit(0));
    RESULT("version", cuDriverGetVersion(&number));
    VALUE("version_at_least_12080", number >= 12080);
    RESULT("version_null", cuDriverGetVersion(NULL));

    CUcontext context = (CUcontext)1;
    RESULT("current", cuCtxGetCurrent(&context));
    VALUE("current_is_null", context == NULL);
    RESULT("current_null_out", cuCtxGetCurrent(NULL));
    RESULT("ctx_device", cuCtxGetDevice(&number));
    RESULT("pop", cuCtxPopCurrent_v2(&context));
    RESULT("synchronize", cuCtxSynchronize());
    RESULT("set_current_null", cuCtxSetCurrent(NULL));
    unsigned flags;
    RESULT("ctx_flags", cuCtxGetFlags(&flags));

    CUdeviceptr pointer = 0;
    size_t bytes, total;
    void* host = NULL;
    CUstream stream;
    CUevent event;
    RESULT("alloc", cuMemAlloc_v2(&pointer, 4096));
    RESULT("alloc_zero", cuMemAlloc_v2(&pointer, 0));
    RESULT("free_null", cuMemFree_v2(0));
    RESULT("free_garbage", cuMemFree_v2(4096));
    RESULT("info", cuMemGetInfo_v2(&bytes, &total));
    RESULT("host_alloc", cuMemHostAlloc(&host, 4096, 0));
    RESULT("stream_create", cuStreamCreate(&stream, 0));
    RESULT("event_create", cuEventCreate(&event, 0));
    RESULT("stream_synchronize_0", cuStreamSynchronize(NULL));
    RESULT("address_range", cuMemGetAddressRange_v2(&pointer, &bytes, 4096));
    RESULT("pointer_attribute", cuPointerGetAttribute(&number, 2, 4096));

    CUmemAllocationProp wanted = device_memory(1);
    RESULT("granularity", cuMemGetAllocationGranularity(&bytes, &wanted, 0));
    CUhandle handle = 0;
    CUresult created = cuMemCreate(&handle, bytes, &wanted, 0);
    RESULT("create", created);
    if (!created) RESULT("release", cuMemRelease(handle));
    CUresult reserved = cuMemAddressReserve(&pointer, bytes, 0, 0, 0);
    RESULT("reserve", reserved);
    if (!reserved) RESULT("unreserve", cuMemAddressFree(pointer, bytes));
}

static void errors(void) {
    static const int numbers[] = {0,   1,   2,   3,   4,   46,  100, 101, 200, 201, 208,   217,
                                  301, 304, 400, 401, 500, 600, 700, 704, 705, 708, 709,   712,
                                  713, 719, 800, 801, 900, 901, 906, 907, 908, 999, 12345, -1};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        const char *name = "-", *text = "-";
        CUresult result = cuGetErrorName(numbers[i], &name);
        CUresult described = cuGetErrorString(numbers[i], &text);
        printf("device.error_%d: %d %s %d %s\n", numbers[i], result, name ? name : "null", described,
               text ? text : "null");
    }
}

void devices(void) {
    int number = -1, device = -1;
    RESULT("get", cuDeviceGet(&device, 0));
    VALUE("get_value", device);
    RESULT("get_negative", cuDeviceGet(&device, -1));
    RESULT("get_too_high", cuDeviceGet(&device, 4096));
    RESULT("get_null", cuDeviceGet(NULL, 0));
    RESULT("count", cuDeviceGetCount(&number));
    VALUE("count_positive", number > 0);
    RESULT("count_null", cuDeviceGetCount(NULL));

    char text[64] = "", uuid[16];
    RESULT("name", cuDeviceGetName(text, sizeof text, 0));
    VALUE("name_says_nvidia", strncmp(text, "NVIDIA", 6) == 0);
    RESULT("name_null", cuDeviceGetName(NULL, 10, 0));
    RESULT("name_bad_device", cuDeviceGetName(text, sizeof text, 4096));
    RESULT("uuid", cuDeviceGetUuid_v2(uuid, 0));
    RESULT("uuid_null", cuDeviceGetUuid_v2(NULL, 0));
    RESULT("uuid_bad_device", cuDeviceGetUuid_v2(uuid, -1));
    RESULT("bus_id", cuDeviceGetPCIBusId(text, sizeof text, 0));
    VALUE("bus_id_length", (long long)strlen(text));
    RESULT("by_bus_id", cuDeviceGetByPCIBusId(&device, text));
    VALUE("by_bus_id_value", device);
    RESULT("by_bus_id_unknown", cuDeviceGetByPCIBusId(&device, "0000:fe:00.0"));
    RESULT("by_bus_id_garbage", cuDeviceGetByPCIBusId(&device, "nonsense"));
    RESULT("bus_id_short", cuDeviceGetPCIBusId(text, 4, 0));
    size_t bytes = 0;
    RESULT("total", cuDeviceTotalMem_v2(&bytes, 0));
    RESULT("total_null", cuDeviceTotalMem_v2(NULL, 0));

    static const struct {
        int attribute;
        const char* name;
    } wanted[] = {{10, "warp_size"},
                  {19, "can_map_host"},
                  {41, "unified_addressing"},
                  {83, "managed"},
                  {99, "host_register"},
                  {102, "vmm"},
                  {103, "posix_fd"},
                  {104, "win32"},
                  {115, "memory_pools"},
                  {122, "mem_ops_64"},
                  {123, "wait_value_nor"},
                  {78, "priorities"},
                  {91, "host_ptr_is_dptr"},
                  {95, "cooperative"},
                  {1, "max_threads"},
                  {2, "max_block_x"},
                  {5, "max_grid_x"},
                  {6, "max_grid_y"},
                  {75, "major"},
                  {76, "minor"},
                  {40, "copy_engines"},
                  {90, "preemption"},
                  {14, "texture_alignment"}};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        number = -1;
        need("attribute", cuDeviceGetAttribute(&number, wanted[i].attribute, 0));
        VALUE(wanted[i].name, number);
    }
    RESULT("attribute_zero", cuDeviceGetAttribute(&number, 0, 0));
    RESULT("attribute_unknown", cuDeviceGetAttribute(&number, 100000, 0));
    RESULT("attribute_null", cuDeviceGetAttribute(NULL, 1, 0));
    RESULT("attribute_bad_device", cuDeviceGetAttribute(&number, 1, 4096));
    RESULT("peer_self", cuDeviceCanAccessPeer(&number, 0, 0));
    VALUE("peer_self_value", number);
    RESULT("peer_bad_device", cuDeviceCanAccessPeer(&number, 0, 4096));
    RESULT("p2p_self", cuDeviceGetP2PAttribute(&number, 2, 0, 0));
    errors();
}

static void resolve(const char* label, const char* name, int version, uint64_t flags) {
    void* found = (void*)1;
    int status = -1;
    CUresult result = cuGetProcAddress_v2(name, &found, version, flags, &status);
    printf("resolve.%s: %d status %d %s\n", label, result, status, found ? "found" : "null");
}

static void* address(const char* name, int version, uint64_t flags) {
    void* found = NULL;
    int status;
    cuGetProcAddress_v2(name, &found, version, flags, &status);
    return found;
}

void resolving(void) {
    resolve("alloc_3020", "cuMemAlloc", 3020, 0);
    resolve("alloc_13000", "cuMemAlloc", 13000, 0);
    resolve("map_too_old", "cuMemMap", 10000, 0);
    resolve("map", "cuMemMap", 10020, 0);
    resolve("suffixed", "cuMemAlloc_v2", 13000, 0);
    resolve("suffixed_ptsz", "cuMemcpyAsync_ptsz", 13000, 0);
    resolve("unknown", "cuThereIsNoSuchFunction", 13000, 0);
    resolve("not_cu", "malloc", 13000, 0);
    resolve("empty", "", 13000, 0);
    resolve("checkpoint_too_old", "cuCheckpointProcessLock", 12070, 0);
    resolve("checkpoint", "cuCheckpointProcessLock", 12080, 0);
    resolve("itself", "cuGetProcAddress", 12000, 0);
    resolve("legacy", "cuMemcpyAsync", 13000, 1);
    resolve("per_thread", "cuMemcpyAsync", 13000, 2);
    resolve("per_thread_without", "cuMemAlloc", 13000, 2);
    resolve("bad_flags", "cuMemAlloc", 13000, 64);
    resolve("version_0", "cuMemAlloc", 0, 0);
    resolve("version_next_minor", "cuMemAlloc", 13010, 0);
    resolve("version_next_major", "cuMemAlloc", 14000, 0);
    resolve("version_high", "cuMemAlloc", 99000, 0);
    VALUE("alloc_is_v2", address("cuMemAlloc", 3020, 0) == *(void**)&cuMemAlloc_v2);
    VALUE("per_thread_differs", address("cuMemcpyAsync", 13000, 2) != address("cuMemcpyAsync", 13000, 0));
    VALUE("legacy_is_default", address("cuMemcpyAsync", 13000, 1) == address("cuMemcpyAsync", 13000, 0));
    VALUE("ctx_create_differs", address("cuCtxCreate", 3020, 0) != address("cuCtxCreate", 13000, 0));
    void* found;
    RESULT("no_status_unknown", cuGetProcAddress_v2("cuThereIsNoSuchFunction", &found, 13000, 0, NULL));
    VALUE("no_status_unknown_found", found != NULL);
    RESULT("no_status_too_old", cuGetProcAddress_v2("cuMemMap", &found, 10000, 0, NULL));
    RESULT("first_abi_unknown", cuGetProcAddress("cuThereIsNoSuchFunction", &found, 13000, 0));
    RESULT("first_abi_too_old", cuGetProcAddress("cuMemMap", &found, 10000, 0));
    RESULT("first_abi", cuGetProcAddress("cuMemMap", &found, 13000, 0));
    const void* table = NULL;
    char unknown[16] = {1, 2, 3};
    RESULT("export_table_unknown", cuGetExportTable(&table, unknown));
}
