// SPDX-License-Identifier: Apache-2.0
#include "hooks/slots.h"

#include "core/sys.h"
#include "hooks/libraries.h"
#include "hooks/symbols.h"
#include "interpose/libc.h"
#include "interpose/objects.h"

namespace gcr {
namespace hooks {

std::atomic<void*> slots[kSymbolCount];

namespace {

// A slot outlives any dlclose of the program's: the driver stays, as its own threads would have it anyway.
void keep_driver_loaded(const Library& library, const void* address) {
    static std::atomic<bool> kept[kLibraries];
    std::atomic<bool>& done = kept[&library - libraries];
    interpose::Object object;
    if (done.load(std::memory_order_relaxed) || !interpose::object_of(address, &object)) return;
    if (!interpose::is_of(library, object) || done.exchange(true, std::memory_order_relaxed)) return;
    interpose::keep_loaded(object.name);
    interpose::remember_driver(library, object);
}

}  // namespace

void* publish(Index index, void* address) {
    if (address == nullptr || interpose::is_ours(address)) return slots[index].load(std::memory_order_acquire);
    keep_driver_loaded(library_of(index), address);
    void* before = nullptr;
    // release: pairs with original(); the loader finished the object long ago, this orders it for other threads
    if (slots[index].compare_exchange_strong(before, address, std::memory_order_acq_rel)) return address;
    return before;
}

void* resolve(Index index) {
    KeepErrno keep;
    bool loaded = false;
    void* found = interpose::find_next(name_of(index));
    if (found == nullptr) found = interpose::find_in_driver(library_of(index), name_of(index), &loaded);
    return publish(index, found);
}

int missing(Index index) {
    KeepErrno keep;
    const Library& library = library_of(index);
    bool loaded = interpose::find_next(library.any) != nullptr;
    if (!loaded) interpose::find_in_driver(library, library.any, &loaded);
    return loaded ? library.lacks : library.absent;
}

}  // namespace hooks
}  // namespace gcr
