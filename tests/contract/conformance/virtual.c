// SPDX-License-Identifier: Apache-2.0
//
// Virtual memory management: reserving, creating, mapping, access, sharing.
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "conformance.h"

static void granularities(void) {
    CUmemAllocationProp wanted = device_memory(1);
    size_t minimum = 0, recommended = 0;
    RESULT("granularity", cuMemGetAllocationGranularity(&minimum, &wanted, 0));
    VALUE("granularity_KiB", minimum / KiB);
    RESULT("recommended", cuMemGetAllocationGranularity(&recommended, &wanted, 1));
    VALUE("recommended_KiB", recommended / KiB);
    RESULT("granularity_bad_option", cuMemGetAllocationGranularity(&minimum, &wanted, 7));
    RESULT("granularity_null", cuMemGetAllocationGranularity(NULL, &wanted, 0));
    RESULT("granularity_no_properties", cuMemGetAllocationGranularity(&minimum, NULL, 0));
    wanted.location.id = 4096;
    RESULT("granularity_bad_device", cuMemGetAllocationGranularity(&minimum, &wanted, 0));
    wanted = device_memory(1);
    wanted.type = 0;
    RESULT("granularity_bad_type", cuMemGetAllocationGranularity(&minimum, &wanted, 0));
}

void reservations(void) {
    size_t g = granularity();
    CUdeviceptr first = 0, second = 0;
    granularities();
    RESULT("zero", cuMemAddressReserve(&first, 0, 0, 0, 0));
    RESULT("unaligned_size", cuMemAddressReserve(&first, g + 4096, 0, 0, 0));
    RESULT("odd_alignment", cuMemAddressReserve(&first, g, 3, 0, 0));
    RESULT("flags", cuMemAddressReserve(&first, g, 0, 0, 1));
    RESULT("null", cuMemAddressReserve(NULL, g, 0, 0, 0));
    RESULT("absurd", cuMemAddressReserve(&first, (size_t)1 << 62, 0, 0, 0));
    RESULT("plain", cuMemAddressReserve(&first, 4 * g, 0, 0, 0));
    VALUE("aligned_to_granularity", first % g == 0);
    CUresult taken = cuMemAddressReserve(&second, 4 * g, 0, first, 0);
    RESULT("hint_taken", taken);
    VALUE("hint_taken_elsewhere", !taken && second != first);
    if (!taken) need("free", cuMemAddressFree(second, 4 * g));
    RESULT("free_part", cuMemAddressFree(first, g));
    RESULT("free_interior", cuMemAddressFree(first + g, 3 * g));
    RESULT("free_zero", cuMemAddressFree(first, 0));
    RESULT("free_too_much", cuMemAddressFree(first, 8 * g));
    RESULT("free", cuMemAddressFree(first, 4 * g));
    RESULT("free_twice", cuMemAddressFree(first, 4 * g));
    RESULT("hint_free", cuMemAddressReserve(&second, 4 * g, 0, first, 0));
    VALUE("hint_free_honoured", second == first);
    need("free", cuMemAddressFree(second, 4 * g));
    RESULT("hint_unaligned", cuMemAddressReserve(&second, g, 0, first + 4096, 0));
    RESULT("large_alignment", cuMemAddressReserve(&second, g, 64 * g, 0, 0));
    VALUE("large_alignment_kept", second % (64 * g) == 0);
    need("free", cuMemAddressFree(second, g));
    RESULT("free_null", cuMemAddressFree(0, g));
}

static void creating(size_t g) {
    CUmemAllocationProp wanted = device_memory(1);
    CUhandle handle = 0;
    RESULT("create_zero", cuMemCreate(&handle, 0, &wanted, 0));
    RESULT("create_unaligned", cuMemCreate(&handle, g + 4096, &wanted, 0));
    RESULT("create_flags", cuMemCreate(&handle, g, &wanted, 1));
    RESULT("create_null", cuMemCreate(NULL, g, &wanted, 0));
    RESULT("create_no_properties", cuMemCreate(&handle, g, NULL, 0));
    RESULT("create_too_much", cuMemCreate(&handle, (size_t)1 << 50, &wanted, 0));
    wanted.location.id = 4096;
    RESULT("create_bad_device", cuMemCreate(&handle, g, &wanted, 0));
    wanted = device_memory(1);
    wanted.type = 0;
    RESULT("create_bad_type", cuMemCreate(&handle, g, &wanted, 0));
    wanted = device_memory(1);
    wanted.location.type = 0;
    RESULT("create_bad_location", cuMemCreate(&handle, g, &wanted, 0));
    RESULT("release_null", cuMemRelease(0));
}

static void access_states(CUdeviceptr at, size_t g) {
    CUmemAccessDesc both = access_of(READ_WRITE), read = access_of(READ), none = access_of(0), bad = access_of(2);
    CUmemLocation here = {ON_DEVICE, 0};
    unsigned long long flags = 99;
    RESULT("access_before", cuMemGetAccess(&flags, &here, at));
    VALUE("access_before_value", flags);
    RESULT("set_access", cuMemSetAccess(at, 2 * g, &both, 1));
    RESULT("access_after", cuMemGetAccess(&flags, &here, at));
    VALUE("access_after_value", flags);
    RESULT("access_interior", cuMemGetAccess(&flags, &here, at + 100));
    RESULT("set_access_read", cuMemSetAccess(at, 2 * g, &read, 1));
    need("access", cuMemGetAccess(&flags, &here, at));
    VALUE("access_read_value", flags);
    RESULT("set_access_none", cuMemSetAccess(at, 2 * g, &none, 1));
    need("access", cuMemGetAccess(&flags, &here, at));
    VALUE("access_none_value", flags);
    RESULT("set_access_bad_flags", cuMemSetAccess(at, 2 * g, &bad, 1));
    RESULT("set_access_no_count", cuMemSetAccess(at, 2 * g, &both, 0));
    RESULT("set_access_null", cuMemSetAccess(at, 2 * g, NULL, 1));
    RESULT("set_access_half", cuMemSetAccess(at, g, &both, 1));
    RESULT("set_access_too_far", cuMemSetAccess(at, 4 * g, &both, 1));
    RESULT("set_access_unmapped", cuMemSetAccess(at + 2 * g, g, &both, 1));
    RESULT("access_unmapped", cuMemGetAccess(&flags, &here, at + 2 * g));
    RESULT("set_access_again", cuMemSetAccess(at, 2 * g, &both, 1));
}

static void mapping_rules(CUdeviceptr at, CUhandle handle, size_t g) {
    RESULT("map_offset", cuMemMap(at, g, g, handle, 0));
    RESULT("map_offset_unaligned", cuMemMap(at, g, 4096, handle, 0));
    RESULT("map_half", cuMemMap(at, g, 0, handle, 0));
    RESULT("unmap_half_undo", cuMemUnmap(at, g));
    RESULT("map_too_long", cuMemMap(at, 4 * g, 0, handle, 0));
    RESULT("map_flags", cuMemMap(at, 2 * g, 0, handle, 1));
    RESULT("map_unaligned", cuMemMap(at + 4096, 2 * g, 0, handle, 0));
    RESULT("map_zero", cuMemMap(at, 0, 0, handle, 0));
    RESULT("map_nowhere", cuMemMap(4096, 2 * g, 0, handle, 0));
    RESULT("map_no_handle", cuMemMap(at, 2 * g, 0, 0, 0));
    RESULT("map", cuMemMap(at, 2 * g, 0, handle, 0));
    RESULT("map_over", cuMemMap(at, 2 * g, 0, handle, 0));
    RESULT("map_overlap", cuMemMap(at + g, 2 * g, 0, handle, 0));
}

static void ranges_and_handles(CUdeviceptr at, CUhandle handle, size_t g) {
    CUdeviceptr base = 0;
    size_t size = 0;
    CUhandle again = 0;
    CUmemAllocationProp seen;
    memset(&seen, 0xff, sizeof seen);
    RESULT("range", cuMemGetAddressRange_v2(&base, &size, at + g + 5));
    VALUE("range_base_offset", (long long)(base - at) / (long long)g);
    VALUE("range_size", size / g);
    RESULT("range_unmapped", cuMemGetAddressRange_v2(&base, &size, at + 3 * g));
    RESULT("retain", cuMemRetainAllocationHandle(&again, (void*)(uintptr_t)at));
    VALUE("retain_same", again == handle);
    RESULT("retain_release", cuMemRelease(again));
    RESULT("retain_interior", cuMemRetainAllocationHandle(&again, (void*)(uintptr_t)(at + 100)));
    need("release", cuMemRelease(again));
    RESULT("retain_unmapped", cuMemRetainAllocationHandle(&again, (void*)(uintptr_t)(at + 3 * g)));
    RESULT("properties", cuMemGetAllocationPropertiesFromHandle(&seen, handle));
    printf("map.properties_value: type %d requested %d location %d %d compression %d rdma %d usage %d\n", seen.type,
           seen.requested, seen.location.type, seen.location.id, seen.compression, seen.rdma, seen.usage);
    RESULT("properties_null", cuMemGetAllocationPropertiesFromHandle(NULL, handle));
    CUdeviceptr plain = 0;
    need("alloc", cuMemAlloc_v2(&plain, 4 * MiB));
    RESULT("retain_plain", cuMemRetainAllocationHandle(&again, (void*)(uintptr_t)plain));
    RESULT("unmap_plain", cuMemUnmap(plain, 4 * MiB));
    CUmemAccessDesc both = access_of(READ_WRITE);
    RESULT("set_access_plain", cuMemSetAccess(plain, 4 * MiB, &both, 1));
    unsigned long long flags = 99;
    CUmemLocation here = {ON_DEVICE, 0};
    RESULT("access_plain", cuMemGetAccess(&flags, &here, plain));
    need("free", cuMemFree_v2(plain));
    RESULT("free_mapping", cuMemFree_v2(at));
}

// `place` is where the mapping begins in the reservation `at`; sizes and distances are printed in granules.
static void attributes_of_mapping(const char* name, CUdeviceptr at, CUdeviceptr place, size_t g) {
    static const int small[] = {2, 6, 8, 9, 10, 13, 14, 15, 16}, starts[] = {11, 19}, sizes[] = {12, 18};
    uint64_t value;
    for (size_t i = 0; i < sizeof small / sizeof *small; i++) {
        value = 0;
        CUresult result = cuPointerGetAttribute(&value, small[i], place + g);
        printf("map.%s_%d: %d value %d\n", name, small[i], result, result ? 0 : (int)value);
    }
    for (size_t i = 0; i < 2; i++) {
        CUresult result = cuPointerGetAttribute(&value, starts[i], place + g);
        printf("map.%s_%d: %d at %lld\n", name, starts[i], result, (long long)(value - at) / (long long)g);
        result = cuPointerGetAttribute(&value, sizes[i], place + g);
        printf("map.%s_%d: %d granules %llu\n", name, sizes[i], result, (unsigned long long)(value / g));
    }
    CUresult result = cuPointerGetAttribute(&value, 1, place);
    printf("map.%s_1: %d %s\n", name, result, value ? "set" : "null");
}

static void unmapping(CUdeviceptr at, CUhandle handle, size_t g) {
    RESULT("unmap_part", cuMemUnmap(at, g));
    RESULT("unmap_tail", cuMemUnmap(at + g, g));
    RESULT("unmap_with_hole", cuMemUnmap(at, 4 * g));
    RESULT("map_second_place", cuMemMap(at + 2 * g, 2 * g, 0, handle, 0));
    RESULT("address_free_mapped", cuMemAddressFree(at, 8 * g));
    RESULT("release_mapped", cuMemRelease(handle));
    RESULT("release_twice", cuMemRelease(handle));
    CUhandle again = 0;
    RESULT("retain_released", cuMemRetainAllocationHandle(&again, (void*)(uintptr_t)(at + 2 * g)));
    need("release", cuMemRelease(again));
    attributes_of_mapping("second_place", at, at + 2 * g, g);
    RESULT("unmap_hole_before", cuMemUnmap(at, 4 * g));
    RESULT("unmap_unmapped", cuMemUnmap(at, 2 * g));
    RESULT("unmap_zero", cuMemUnmap(at, 0));
    RESULT("address_free", cuMemAddressFree(at, 8 * g));
    RESULT("unmap_unreserved", cuMemUnmap(at, 2 * g));
}

void mappings(void) {
    size_t g = granularity();
    CUmemAllocationProp wanted = device_memory(1);
    CUdeviceptr at = 0;
    CUhandle handle = 0;
    creating(g);
    need("reserve", cuMemAddressReserve(&at, 8 * g, 0, 0, 0));
    RESULT("create", cuMemCreate(&handle, 2 * g, &wanted, 0));
    mapping_rules(at, handle, g);
    access_states(at, g);
    ranges_and_handles(at, handle, g);
    attributes_of_mapping("attribute", at, at, g);
    uint64_t value;
    RESULT("attribute_unmapped", cuPointerGetAttribute(&value, 2, at + 3 * g));
    RESULT("memset", cuMemsetD8_v2(at, 5, 2 * g));
    unmapping(at, handle, g);
}

static void imports(size_t g) {
    CUhandle handle = 0;
    int null = open("/dev/null", O_RDWR), file = open("/proc/self/exe", O_RDONLY);
    RESULT("import_minus_one", cuMemImportFromShareableHandle(&handle, (void*)(intptr_t)-1, POSIX_FD));
    RESULT("import_dev_null", cuMemImportFromShareableHandle(&handle, (void*)(intptr_t)null, POSIX_FD));
    RESULT("import_file", cuMemImportFromShareableHandle(&handle, (void*)(intptr_t)file, POSIX_FD));
    RESULT("import_bad_type", cuMemImportFromShareableHandle(&handle, (void*)(intptr_t)null, 64));
    close(null);
    close(file);
    CUmemAllocationProp wanted = device_memory(0);
    int fd = -1;
    need("create", cuMemCreate(&handle, g, &wanted, 0));
    RESULT("export_unexportable", cuMemExportToShareableHandle(&fd, handle, POSIX_FD, 0));
    need("release", cuMemRelease(handle));
    RESULT("export_released", cuMemExportToShareableHandle(&fd, handle, POSIX_FD, 0));
}

static void round_trip(CUdeviceptr at, CUhandle imported, size_t g) {
    CUmemAccessDesc both = access_of(READ_WRITE);
    unsigned char byte = 0;
    RESULT("map_imported", cuMemMap(at + g, g, 0, imported, 0));
    RESULT("set_access_imported", cuMemSetAccess(at + g, g, &both, 1));
    need("memset", cuMemsetD8_v2(at, 42, g));
    RESULT("read_imported", cuMemcpyDtoH_v2(&byte, at + 2 * g - 1, 1));
    VALUE("read_imported_value", byte);
    RESULT("unmap_all", cuMemUnmap(at, 2 * g));
}

void sharing(void) {
    size_t g = granularity();
    CUmemAllocationProp wanted = device_memory(1), seen;
    CUmemAccessDesc both = access_of(READ_WRITE);
    CUdeviceptr at = 0;
    CUhandle handle = 0, imported = 0, twice = 0;
    int fd = -1, second = -1;
    need("reserve", cuMemAddressReserve(&at, 2 * g, 0, 0, 0));
    need("create", cuMemCreate(&handle, g, &wanted, 0));
    need("map", cuMemMap(at, g, 0, handle, 0));
    need("access", cuMemSetAccess(at, g, &both, 1));
    RESULT("export", cuMemExportToShareableHandle(&fd, handle, POSIX_FD, 0));
    VALUE("export_is_descriptor", fcntl(fd, F_GETFD) >= 0);
    VALUE("export_is_cloexec", (fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
    RESULT("export_again", cuMemExportToShareableHandle(&second, handle, POSIX_FD, 0));
    VALUE("export_again_differs", fd != second);
    RESULT("export_bad_type", cuMemExportToShareableHandle(&second, handle, 64, 0));
    RESULT("export_flags", cuMemExportToShareableHandle(&second, handle, POSIX_FD, 1));
    RESULT("export_null", cuMemExportToShareableHandle(NULL, handle, POSIX_FD, 0));
    RESULT("import", cuMemImportFromShareableHandle(&imported, (void*)(intptr_t)fd, POSIX_FD));
    VALUE("import_same_handle", imported == handle);
    RESULT("import_twice", cuMemImportFromShareableHandle(&twice, (void*)(intptr_t)fd, POSIX_FD));
    VALUE("descriptor_still_open", fcntl(fd, F_GETFD) >= 0);
    close(fd);
    close(second);
    RESULT("properties_imported", cuMemGetAllocationPropertiesFromHandle(&seen, imported));
    VALUE("properties_requested", seen.requested);
    VALUE("properties_device", seen.location.id);
    RESULT("export_imported", cuMemExportToShareableHandle(&fd, imported, POSIX_FD, 0));
    close(fd);
    round_trip(at, imported, g);
    RESULT("release", cuMemRelease(handle));
    RESULT("release_imported", cuMemRelease(imported));
    RESULT("release_twice_imported", cuMemRelease(twice));
    need("free", cuMemAddressFree(at, 2 * g));
    imports(g);
}
