// SPDX-License-Identifier: Apache-2.0
//
// cuGetProcAddress: the newest ABI of a name that is not newer than the version asked for. symbols.def is the list.
#include <string.h>

#include "front.h"

enum flags { FLAG_DEFAULT = 0, FLAG_LEGACY = 1, FLAG_PER_THREAD = 2 };
enum status { FOUND = 0, SYMBOL_NOT_FOUND = 1, VERSION_NOT_SUFFICIENT = 2 };

// The bodies have many types; only their addresses are wanted.
#define SYMBOL(base, version, per_thread, symbol) \
    __attribute__((visibility("default"))) extern char symbol##_address __asm__(#symbol);
#include "symbols.def"
#undef SYMBOL

static const struct symbol {
    const char* base;
    int version;
    int per_thread;
    void* address;
} symbols[] = {
#define SYMBOL(base, version, per_thread, symbol) {#base, version, per_thread, &symbol##_address},
#include "symbols.def"
#undef SYMBOL
};

enum { COUNT = sizeof symbols / sizeof *symbols };

// symbols.def is sorted by name.
static size_t first_of(const char* base) {
    size_t low = 0, high = COUNT;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (strcmp(symbols[middle].base, base) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool better(const struct symbol* candidate, const struct symbol* best, bool per_thread) {
    if (candidate->per_thread && !per_thread) return false;
    if (!best) return true;
    if (candidate->per_thread != best->per_thread) return candidate->per_thread;
    return candidate->version > best->version;
}

static CUresult resolve(const char* base, void** out, int version, uint64_t flags, int* status) {
    if (!base || !out || flags > FLAG_PER_THREAD || version > FRONT_DRIVER_VERSION) return CUDA_ERROR_INVALID_VALUE;
    const struct symbol* best = NULL;
    size_t i = first_of(base);
    bool known = i < COUNT && !strcmp(symbols[i].base, base);
    for (; i < COUNT && !strcmp(symbols[i].base, base); i++)
        if (symbols[i].version <= version && better(&symbols[i], best, flags == FLAG_PER_THREAD)) best = &symbols[i];
    *out = best ? best->address : NULL;
    if (status) *status = best ? FOUND : known ? VERSION_NOT_SUFFICIENT : SYMBOL_NOT_FOUND;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuGetProcAddress_v2(const char* base, void** out, int version, uint64_t flags, int* status) {
    return resolve(base, out, version, flags, status);
}

SIM_API CUresult cuGetProcAddress(const char* base, void** out, int version, uint64_t flags) {
    int status;
    CUresult result = resolve(base, out, version, flags, &status);
    return result || status == FOUND ? result : CUDA_ERROR_NOT_FOUND;
}

// Undocumented tables of the driver: a static cudart asks for them and cannot work on a simulated driver.
SIM_API CUresult cuGetExportTable(const void** table, const CUuuid* id) {
    if (!table || !id) return CUDA_ERROR_INVALID_VALUE;
    *table = NULL;
    return CUDA_ERROR_INVALID_VALUE;
}
