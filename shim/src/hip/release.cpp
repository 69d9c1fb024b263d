// SPDX-License-Identifier: Apache-2.0
#include "hip/release.h"

#include <sys/mman.h>

#include <atomic>

#include "core/sys.h"
#include "device/devices.h"
#include "hip/ops.h"
#include "hip/state.h"

namespace gcr {
namespace hip {
namespace {

constexpr uint64_t kProbe = 64ull << 20;  // bytes: more than others are likely to take or give meanwhile

std::atomic<Release> chosen{Release::kUnprobed};

uint64_t used_bytes() {
    size_t free_bytes = 0, total = 0;
    return real::hipMemGetInfo(&free_bytes, &total) == hipSuccess ? total - free_bytes : 0;
}

// Unmapped and released, its address kept.
bool use_and_release(uint64_t address, uint64_t size, int device) {
    uint64_t memory = 0;
    if (kDeviceOps.create(size, kDeviceOps.plain(device), 0, false, &memory) != hipSuccess) return false;
    bool mapped = kDeviceOps.map(address, size, 0, memory) == hipSuccess;
    if (mapped) kDeviceOps.set_access(address, size, device::device_bit(device), device::device_bit(device));
    bool unmapped = mapped && kDeviceOps.unmap(address, size) == hipSuccess;
    kDeviceOps.release(memory);
    return unmapped;
}

// No room to try: the mapping over does no harm where it is not needed.
Release probe(int device) {
    uint64_t granularity = device::facts_of(state, device).granularity;
    uint64_t address = 0, size = device::round_up(kProbe, granularity == 0 ? 1 : granularity);
    if (kDeviceOps.reserve(size, 0, &address) != hipSuccess) return Release::kMapOver;
    uint64_t before = used_bytes();
    bool tried = use_and_release(address, size, device);
    uint64_t after = used_bytes();
    kDeviceOps.give_back(address, size);
    return tried && after < before + size / 2 ? Release::kPlain : Release::kMapOver;
}

// The reservation stays the runtime's; only what lies there in this process's address space is replaced.
void map_over(uint64_t address, uint64_t size) {
    mmap(pointer_at(address), size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

}  // namespace

Release chosen_release() {
    return chosen.load(std::memory_order_relaxed);
}

void vacate(uint64_t address, uint64_t size) {
    KeepErrno keep;
    if (chosen_release() == Release::kUnprobed) {
        int device = 0;
        real::hipGetDevice(&device);
        chosen.store(probe(device), std::memory_order_relaxed);
        state.maps_over.store(chosen_release() == Release::kMapOver, std::memory_order_relaxed);
    }
    if (chosen_release() == Release::kMapOver) map_over(address, size);
}

}  // namespace hip
}  // namespace gcr
