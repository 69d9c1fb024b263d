// SPDX-License-Identifier: Apache-2.0
//
// Memory shared between processes. A shareable handle is a 64-bit name that holds nothing by itself: the memory must
// live until the importer has it. Unless the exporter waives it, importers must be on the list of processes it set.
// The list is kept with the memory, in the page after its bytes, and goes with it.
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "front.h"

enum { LIST_OFFSET = 256, LIST_MAX = 512, SLOT_BITS = 16 };

struct list {
    uint32_t anybody;
    uint32_t count;
    int32_t pids[LIST_MAX];
};

_Static_assert(LIST_OFFSET + sizeof(struct list) <= SIM_PAGE, "the list fits into the page");
_Static_assert(SIM_ENTRIES <= 1 << SLOT_BITS, "a slot fits into its bits");

static uint64_t name_of(const struct sim_entry* entry) {
    return entry->generation << SLOT_BITS | entry->slot;
}

static struct sim_entry entry_of(uint64_t name) {
    return (struct sim_entry){(uint32_t)(name & ((1 << SLOT_BITS) - 1)), name >> SLOT_BITS};
}

static off_t list_place(int fd) {
    struct stat status;
    return fstat(fd, &status) ? -1 : status.st_size - SIM_PAGE + LIST_OFFSET;
}

static bool write_list(int fd, const struct list* list) {
    off_t place = list_place(fd);
    return place > 0 && pwrite(fd, list, sizeof *list, place) == (ssize_t)sizeof *list;
}

static bool read_list(int fd, struct list* list) {
    off_t place = list_place(fd);
    return place > 0 && pread(fd, list, sizeof *list, place) == (ssize_t)sizeof *list;
}

// With sim_lock: this process's own memory of that name.
static struct sim_physical* own(const struct sim_entry* entry) {
    struct sim_ranges* all = sim_physical_all();
    for (size_t i = 0; i < all->count; i++) {
        struct sim_physical* physical = (struct sim_physical*)all->items[i];
        if (physical->entry.slot == entry->slot && physical->entry.generation == entry->generation) return physical;
    }
    return NULL;
}

static aclError set_list(const struct sim_entry* entry, const struct list* list) {
    int fd;
    sim_result result = sim_machine_export(entry, &fd);
    if (result) return ACL_ERROR_RT_PARAM_INVALID;
    bool written = write_list(fd, list);
    close(fd);
    return written ? ACL_SUCCESS : ACL_ERROR_RT_DRV_INTERNAL_ERROR;
}

// ---- exporting ------------------------------------------------------------------------------------------------------
// Only memory made here, and only once: handle and name are one to one.
static aclError export(aclrtDrvMemHandle handle, uint64_t flags, uint64_t* name) {
    REQUIRE(name && flags <= ACL_RT_VMM_EXPORT_FLAG_DISABLE_PID_VALIDATION);
    if (sim_machine_has_quirk(SIM_QUIRK_NOEXPORT)) return ACL_ERROR_RT_FEATURE_NOT_SUPPORT;
    LOCK();
    struct sim_physical* physical = sim_physical_find((uint64_t)(uintptr_t)handle);
    REQUIRE(physical && !physical->imported && !physical->exported);
    struct list list = {.anybody = flags == ACL_RT_VMM_EXPORT_FLAG_DISABLE_PID_VALIDATION};
    aclError result = set_list(&physical->entry, &list);
    if (result) return result;
    physical->exported = true;
    *name = name_of(&physical->entry);
    return ACL_SUCCESS;
}

SIM_API aclError aclrtMemExportToShareableHandle(aclrtDrvMemHandle handle, aclrtMemHandleType type, uint64_t flags,
                                                 uint64_t* name) {
    ENTER();
    REQUIRE(type == ACL_MEM_HANDLE_TYPE_NONE);
    return export(handle, flags, name);
}

// A fabric handle reaches other servers; there are none here.
#define ONLY_WITHIN_SERVER(type)                                                             \
    if ((type) == ACL_MEM_SHARE_HANDLE_TYPE_FABRIC) return ACL_ERROR_RT_FEATURE_NOT_SUPPORT; \
    REQUIRE((type) == ACL_MEM_SHARE_HANDLE_TYPE_DEFAULT)

SIM_API aclError aclrtMemExportToShareableHandleV2(aclrtDrvMemHandle handle, uint64_t flags,
                                                   aclrtMemSharedHandleType type, void* name) {
    ENTER();
    ONLY_WITHIN_SERVER(type);
    return export(handle, flags, name);
}

static aclError set_pids(uint64_t name, const int32_t* pids, size_t count) {
    struct sim_entry entry = entry_of(name);
    REQUIRE(pids && count && count <= LIST_MAX);
    LOCK();
    const struct sim_physical* physical = own(&entry);
    REQUIRE(physical && physical->exported);
    struct list list = {.count = (uint32_t)count};
    memcpy(list.pids, pids, count * sizeof *pids);
    return set_list(&entry, &list);
}

SIM_API aclError aclrtMemSetPidToShareableHandle(uint64_t name, int32_t* pids, size_t count) {
    ENTER();
    return set_pids(name, pids, count);
}

SIM_API aclError aclrtMemSetPidToShareableHandleV2(void* name, aclrtMemSharedHandleType type, int32_t* pids,
                                                   size_t count) {
    ENTER();
    ONLY_WITHIN_SERVER(type);
    REQUIRE(name);
    return set_pids(*(uint64_t*)name, pids, count);
}

// ---- importing ------------------------------------------------------------------------------------------------------
static bool admits(const struct list* list, int32_t pid) {
    for (uint32_t i = 0; i < list->count && i < LIST_MAX; i++)
        if (list->pids[i] == pid) return true;
    return list->anybody;
}

static sim_result take(int fd, struct sim_physical** physical) {
    struct list list;
    if (!read_list(fd, &list)) return SIM_OPERATING_SYSTEM;
    return admits(&list, getpid()) ? sim_physical_import(fd, physical) : SIM_NOT_PERMITTED;
}

static void describe(struct sim_physical* physical, uint32_t device) {
    aclrtPhysicalMemProp properties = {.memAttr = ACL_HBM_MEM_HUGE, .location = {device, ACL_MEM_LOCATION_TYPE_DEVICE}};
    memcpy(physical->properties, &properties, sizeof properties);
}

// `device` < 0: that of the memory.
static aclError import(uint64_t name, int32_t device, aclrtDrvMemHandle* out) {
    struct sim_entry entry = entry_of(name);
    REQUIRE(out);
    LOCK();
    if (own(&entry)) return ACL_ERROR_RT_PARAM_INVALID;  // not in the exporting process, and once in another
    int fd;
    if (sim_machine_export(&entry, &fd)) return ACL_ERROR_RT_PARAM_INVALID;
    struct sim_physical* physical;
    sim_result result = take(fd, &physical);
    close(fd);
    if (result) return front_result(result);
    describe(physical, device < 0 ? physical->device : (uint32_t)device);
    *out = (void*)physical->id_range.start;
    return ACL_SUCCESS;
}

SIM_API aclError aclrtMemImportFromShareableHandle(uint64_t name, int32_t device, aclrtDrvMemHandle* out) {
    ENTER();
    DEVICE(device);
    return import(name, device, out);
}

SIM_API aclError aclrtMemImportFromShareableHandleV2(void* name, aclrtMemSharedHandleType type, uint64_t flags,
                                                     aclrtDrvMemHandle* out) {
    ENTER();
    ONLY_WITHIN_SERVER(type);
    REQUIRE(name && !flags);
    return import(*(uint64_t*)name, -1, out);
}
