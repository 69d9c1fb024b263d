// SPDX-License-Identifier: Apache-2.0
#include "interpose/lookup.h"

#include <dlfcn.h>

#include "core/sys.h"
#include "hooks/libraries.h"
#include "hooks/symbols.h"
#include "hooks/unclassified.h"
#include "interpose/libc.h"
#include "interpose/objects.h"

namespace gcr {
namespace interpose {
namespace {

using hooks::Index;

Lookup go_to(void* target) {
    return {target, nullptr};
}  // no object there: null is the answer too
Lookup give(void* answer) {
    return {nullptr, answer};
}
void* held(Index index) {
    return hooks::slots[index].load(std::memory_order_acquire);
}

struct After {
    const void* point;  // an address in the object to start behind; null once it was passed
    const char* name;
    bool found;
    Object first;
};

bool first_definition(const Object& object, void* context) {
    auto* after = static_cast<After*>(context);
    if (after->point != nullptr) {
        auto address = reinterpret_cast<uintptr_t>(after->point);
        if (address >= object.start && address < object.end) after->point = nullptr;
        return false;
    }
    if (!defines(object, after->name)) return false;
    after->found = true;
    after->first = object;
    return true;
}

struct Order {
    uintptr_t caller;
    bool ours_passed;
};

bool until_caller(const Object& object, void* context) {
    auto* order = static_cast<Order*>(context);
    if (order->caller >= object.start && order->caller < object.end) return true;
    order->ours_passed |= is_ours(reinterpret_cast<const void*>(object.start));
    return false;
}

bool follows_us(const void* caller) {
    Order order{reinterpret_cast<uintptr_t>(caller), false};
    return each_object(until_caller, &order) && order.ours_passed;
}

// The caller is a link of the chain we head: it has the symbol too, and our wrapper in its hands would come back to it.
bool is_behind_us(const void* caller, const char* name) {
    Object object;
    return object_of(caller, &object) && defines(object, name) && follows_us(caller);
}

// Symbols of some libraries we export without a version, as references with any version must bind to ours (HIP). The
// loader finds them even where bare it would find nothing; what it would find bare comes after us.
void* as_bare(void* found, const char* name) {
    return found != nullptr && is_ours(found) ? find_next(name) : found;
}

// The failure of the lookup as a bare program would see it: null, and a message for dlerror.
Lookup fail(const char* name) {
    void* libc = libc_handle();
    return give(libc == nullptr ? nullptr : libc_dlsym()(libc, name));
}

// RTLD_NEXT for a symbol that we too would give. Wherever the answer would not plainly be the driver, the loader decides.
Lookup look_behind(Index index, const char* name, const void* caller, void* next) {
    prepare(index);
    void* last = held(index);
    After after{caller, name, false, {}};
    each_object(first_definition, &after);
    if (!after.found) return go_to(next);
    bool ours = is_ours(reinterpret_cast<const void*>(after.first.start));
    if (!ours && find_in(program_handle(), name) == nullptr && find_beside(caller, name) == nullptr) return go_to(next);
    if (last == nullptr) return ours && hooks::library_of(index).unversioned ? fail(name) : go_to(next);
    if (ours || (is_driver(after.first) && in_driver(last))) return give(hooks::wrappers[index]);
    return go_to(next);
}

// RTLD_DEFAULT: the global scope, then the caller's own. Our exports are invisible to it, see hooks/exports.map.
Lookup look_everywhere(Index index, const char* name, const void* caller, void* next) {
    prepare(index);
    void* first = find_in(program_handle(), name);
    void* found = as_bare(first, name);
    if (found == nullptr) found = as_bare(find_beside(caller, name), name);
    if (found != nullptr) return give(substitute(index, found, caller));
    return first == nullptr ? go_to(next) : fail(name);
}

Lookup look_in(void* handle, Index index, const char* name, const void* caller, Dlsym next) {
    prepare(index);
    void* first = next(handle, name);
    void* found = as_bare(first, name);
    if (found == nullptr) return first == nullptr ? give(nullptr) : fail(name);
    return give(substitute(index, found, caller));
}

Lookup look_up_unknown(void* handle, const char* name, Dlsym next) {
    void* found = next(handle, name);
    if (found != nullptr && in_driver(found)) hooks::note_unclassified(name);
    return give(found);
}

bool is_handle(const void* handle) {
    return handle != RTLD_DEFAULT && handle != RTLD_NEXT;
}

}  // namespace

void prepare(Index index) {
    if (held(index) == nullptr) hooks::publish(index, find_next(hooks::name_of(index)));
}

void* substitute(Index index, void* found, const void* caller) {
    if (is_ours(found)) return found;
    if (held(index) == nullptr && in_driver(found)) hooks::publish(index, found);
    if (found == held(index)) return hooks::wrappers[index];
    if (held(index) == nullptr || !in_driver(found)) return found;
    return is_behind_us(caller, hooks::name_of(index)) ? found : hooks::wrappers[index];
}

}  // namespace interpose
}  // namespace gcr

using gcr::hooks::Index;
using gcr::hooks::kNoSymbol;
using namespace gcr::interpose;

Lookup gcr_look_up(void* handle, const char* name, const void* caller) {
    gcr::KeepErrno keep;
    Dlsym next = next_dlsym();
    void* target = reinterpret_cast<void*>(next);
    if (next == nullptr || name == nullptr || gcr::hooks::library_like(name) == nullptr) return go_to(target);
    Index index = gcr::hooks::find_symbol(name);
    if (index == kNoSymbol) return is_handle(handle) ? look_up_unknown(handle, name, next) : go_to(target);
    if (gcr::hooks::wrappers[index] == nullptr || in_remembered_driver(caller)) return go_to(target);
    if (is_handle(handle)) return look_in(handle, index, name, caller, next);
    if (next != libc_dlsym() && !is_ours(caller)) return go_to(target);
    if (handle == RTLD_NEXT) return look_behind(index, name, caller, target);
    return look_everywhere(index, name, caller, target);
}

Lookup gcr_look_up_version(void* handle, const char* name, const char* version, const void* caller) {
    gcr::KeepErrno keep;
    Dlvsym next = next_dlvsym();
    void* target = reinterpret_cast<void*>(next);
    if (next == nullptr || name == nullptr || gcr::hooks::library_like(name) == nullptr || !is_handle(handle))
        return go_to(target);
    Index index = gcr::hooks::find_symbol(name);
    if (index == kNoSymbol || gcr::hooks::wrappers[index] == nullptr) return go_to(target);
    prepare(index);
    void* found = next(handle, name, version);
    return give(found != nullptr ? substitute(index, found, caller) : nullptr);
}
