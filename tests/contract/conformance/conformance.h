// SPDX-License-Identifier: Apache-2.0
//
// The conformance program: calls the CUDA driver with fixed arguments and prints one `name: result` line each. It runs
// bare and under the shim, on the simulated driver and on a real device. recorded_h200.txt is what a device answered;
// the simulated driver must say the same, line by line, and under the shim only the lines of differs_under_shim.txt may
// be others. So nothing here prints an address, a size of the device, a name or a time.
//
// Build: cc -O1 -o cuda_conformance *.c -ldl        Run: ./cuda_conformance (one device visible is enough)
#ifndef GCR_CONFORMANCE_H
#define GCR_CONFORMANCE_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef int CUresult;
typedef unsigned long long CUdeviceptr;
typedef unsigned long long CUhandle;
typedef void* CUcontext;
typedef void* CUstream;
typedef void* CUevent;
typedef void* CUgraph;
typedef void* CUgraphExec;

typedef struct {
    int type;
    int id;
} CUmemLocation;

typedef struct {
    int type;
    int requested;
    CUmemLocation location;
    void* win32;
    unsigned char compression;
    unsigned char rdma;
    unsigned short usage;
    unsigned char reserved[4];
} CUmemAllocationProp;

typedef struct {
    CUmemLocation location;
    int flags;
} CUmemAccessDesc;

typedef struct {
    char reserved[64];
} CUipcMemHandle;

enum { PINNED = 1, ON_DEVICE = 1, ON_HOST = 2, POSIX_FD = 1, READ = 1, READ_WRITE = 3 };
enum { GLOBAL = 0, THREAD_LOCAL = 1, RELAXED = 2 };  // modes of a capture
enum { KiB = 1024, MiB = 1024 * 1024 };

#define FUNCTION(name, parameters) extern CUresult(*name) parameters;
#include "driver.def"
#undef FUNCTION

void print_result(const char* section, const char* name, CUresult result);
void print_value(const char* section, const char* name, long long value);

extern const char* section;
#define RESULT(name, call) print_result(section, name, call)
#define VALUE(name, value) print_value(section, name, (long long)(value))

CUmemAllocationProp device_memory(int exportable);
CUmemAccessDesc access_of(int flags);
size_t granularity(void);
void need(const char* what, CUresult result);  // preparation; when it fails the rest of the part is left out

void before_context(void);
void devices(void);
void resolving(void);
void primary_contexts(void);
void contexts(void);
void allocations(void);
void pools(void);
void pool_memory(void);
void host_memory(void);
void pointers(void);
void reservations(void);
void mappings(void);
void sharing(void);
void copies(void);
void streams(void);
void events(void);
void captures(void);
void graphs(void);
void interprocess(void);
void checkpoints(void);

// Cases after which a context, or the process, is of no more use.
struct risky {
    const char* name;
    void (*run)(void);
};
extern const struct risky risky_cases[];
extern const unsigned risky_count;

#endif
