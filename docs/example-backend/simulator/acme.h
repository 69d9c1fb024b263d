/* SPDX-License-Identifier: Apache-2.0
 *
 * The driver of acme, a vendor that does not exist. Each device has one context a process, made by acmeSetDevice.
 * Device memory: physical memory behind a handle, mapped at a reserved address; or acmeAlloc, which does all of it.
 * Sizes are bytes. Whatever is called before acmeInit answers ACME_NOT_STARTED.
 */
#ifndef ACME_H
#define ACME_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef int acmeResult;
enum {
    ACME_OK = 0,
    ACME_INVALID = 1,
    ACME_NO_MEMORY = 2,
    ACME_NOT_READY = 3,
    ACME_NOT_STARTED = 4,
    ACME_NO_DEVICE = 5,
    ACME_WRONG_STATE = 6, /* the step does not follow the state of that process, or not in time */
    ACME_FAULT = 7,       /* the device went where it may not */
    ACME_UNKNOWN = 8,
    ACME_LACKING = 9,     /* said for the driver: it has no such call */
    ACME_ABSENT = 10,     /* said for the driver: it is not there */
};
enum { ACME_RUNNING = 0, ACME_LOCKED = 1, ACME_CHECKPOINTED = 2, ACME_LOST = 3 };

acmeResult acmeInit(void);
acmeResult acmeDeviceCount(int* count);
acmeResult acmeDeviceName(int device, char* name, size_t size);
acmeResult acmeDeviceUuid(int device, uint8_t uuid[16]);
acmeResult acmeDeviceMemory(int device, uint64_t* used, uint64_t* total);
acmeResult acmeDeviceUsers(int device, int* pids, uint64_t* bytes, size_t* count); /* count: room; then found */
acmeResult acmeSetDevice(int device); /* of the calling thread; makes the context */
acmeResult acmeResetDevice(int device); /* everything of this process on it ends */
acmeResult acmeSynchronize(int device);
acmeResult acmeGranularity(uint64_t* size);

acmeResult acmeAlloc(uint64_t* address, uint64_t size); /* on the thread's device */
acmeResult acmeFree(uint64_t address);                  /* waits for the device */

acmeResult acmeReserve(uint64_t size, uint64_t wanted, uint64_t* address); /* wanted: or elsewhere; 0: anywhere */
acmeResult acmeUnreserve(uint64_t address, uint64_t size);
acmeResult acmeCreate(int device, uint64_t size, uint64_t* handle);
acmeResult acmeRelease(uint64_t handle);
acmeResult acmeExport(uint64_t handle, int* descriptor);
acmeResult acmeImport(int descriptor, uint64_t* handle); /* the descriptor stays the caller's */
acmeResult acmeMap(uint64_t address, uint64_t size, uint64_t handle); /* all of it; its device may use it at once */
acmeResult acmeUnmap(uint64_t address, uint64_t size); /* one or several whole mappings */

acmeResult acmeStreamCreate(void** stream);
acmeResult acmeStreamDestroy(void* stream);
acmeResult acmeStreamQuery(void* stream);
acmeResult acmeCopy(uint64_t to, uint64_t from, uint64_t size); /* done when it returns */
acmeResult acmeCopyAsync(uint64_t to, uint64_t from, uint64_t size, void* stream);
acmeResult acmeLaunch(const char* kernel, const void* arguments, size_t size, void* stream); /* NULL: the default one */
acmeResult acmeEventRecord(void* stream, void** event); /* makes it */
acmeResult acmeEventQuery(void* event);
acmeResult acmeEventSeconds(void* first, void* last, double* seconds);
acmeResult acmeEventDestroy(void* event);
acmeResult acmePin(void* memory, uint64_t size);
acmeResult acmeUnpin(void* memory);

/* Control checkpoint of another process; its data must be gone, or is kept in host memory. */
acmeResult acmeProcessState(int pid, int* state);
acmeResult acmeProcessLock(int pid, unsigned timeout_ms);
acmeResult acmeProcessCheckpoint(int pid);
acmeResult acmeProcessRestore(int pid);
acmeResult acmeProcessUnlock(int pid);

#ifdef __cplusplus
}
#endif
#endif
