// SPDX-License-Identifier: Apache-2.0
#include "hooks/slots.h"

#include "abi/cuda.h"
#include "core/sys.h"
#include "hooks/symbols.h"
#include "interpose/libc.h"
#include "interpose/objects.h"

namespace gcr {
namespace hooks {

std::atomic<void*> slots[kSymbolCount];

namespace {

// A slot outlives any dlclose of the program's: the driver stays, as its own threads would have it anyway.
void keep_driver_loaded(const void* address) {
    static std::atomic<bool> kept;
    interpose::Object object;
    if (kept.load(std::memory_order_relaxed) || !interpose::object_of(address, &object)) return;
    if (!interpose::is_driver(object) || kept.exchange(true, std::memory_order_relaxed)) return;
    interpose::keep_loaded(object.name);
    interpose::remember_driver(object);
}

}  // namespace

void* publish(Index index, void* address) {
    if (address == nullptr || interpose::is_ours(address)) return slots[index].load(std::memory_order_acquire);
    keep_driver_loaded(address);
    void* before = nullptr;
    // release: pairs with original(); the loader finished the object long ago, this orders it for other threads
    if (slots[index].compare_exchange_strong(before, address, std::memory_order_acq_rel)) return address;
    return before;
}

void* resolve(Index index) {
    KeepErrno keep;
    bool loaded = false;
    void* found = interpose::find_next(name_of(index));
    if (found == nullptr) found = interpose::find_in_driver(name_of(index), &loaded);
    return publish(index, found);
}

int missing() {
    KeepErrno keep;
    bool loaded = false;
    if (interpose::find_next("cuInit") == nullptr)
        interpose::find_in_driver("cuInit", &loaded);
    else
        loaded = true;
    return loaded ? cuda_abi::CUDA_ERROR_NOT_FOUND : cuda_abi::CUDA_ERROR_STUB_LIBRARY;
}

}  // namespace hooks
}  // namespace gcr
