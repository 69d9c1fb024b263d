// SPDX-License-Identifier: Apache-2.0
//
// How much of a device is free: a server may ask in a thread that has to go on, so the shim answers while the job is
// suspended. It tells what the driver said last, and beside it what the program has had there since: that is away.
#include <atomic>

#include "cuda/contexts.h"
#include "cuda/driver.h"
#include "device/state.h"
#include "hooks/cuda_calls.h"

namespace gcr {
namespace cuda {
namespace {

// By device, as the driver said last. `total` 0: it has not been asked.
struct Room {
    std::atomic<size_t> free, total;
};
constexpr CUdevice kDevices = 64;
Room rooms[kDevices];

Room* room_of(CUdevice device) {
    return device >= 0 && device < kDevices ? &rooms[device] : nullptr;
}

// The program's own memory, which gcr hands over.
size_t held(CUdevice device) {
    size_t bytes = 0;
    Guard guard(state.lock);
    for (Handle* handle = state.handles.first(); handle != nullptr; handle = state.handles.after(handle))
        if (device::coverable(*handle) && handle->device == device) bytes += handle->size;
    return bytes;
}

Room* current_room() {
    CUdevice device = 0;
    return known_device(&device) ? room_of(device) : nullptr;
}

}  // namespace

CUresult on_cuMemGetInfo_v2(size_t* free, size_t* total) {
    CUresult result = real::cuMemGetInfo_v2(free, total);
    CUdevice device = 0;
    if (result != CUDA_SUCCESS || free == nullptr || total == nullptr) return result;
    if (!known_device(&device) && real::cuCtxGetDevice(&device) != CUDA_SUCCESS) return result;
    if (Room* room = room_of(device)) {
        room->free.store(*free, std::memory_order_relaxed);
        room->total.store(*total, std::memory_order_relaxed);
    }
    return result;
}

CUresult frozen_cuMemGetInfo_v2(size_t* free, size_t* total) {
    Room* room = free != nullptr && total != nullptr ? current_room() : nullptr;
    size_t all = room != nullptr ? room->total.load(std::memory_order_relaxed) : 0;
    if (all == 0) return kUnanswered;
    size_t now = room->free.load(std::memory_order_relaxed) + held(static_cast<CUdevice>(room - rooms));
    *free = now < all ? now : all;
    *total = all;
    return CUDA_SUCCESS;
}

}  // namespace cuda
}  // namespace gcr
