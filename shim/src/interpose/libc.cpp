// SPDX-License-Identifier: Apache-2.0
#include "interpose/libc.h"

#include <dlfcn.h>
#include <link.h>
#include <string.h>

#include <atomic>

#include "interpose/objects.h"

namespace gcr {
namespace interpose {
namespace {

using Dlopen = void* (*)(const char* path, int mode);
using Dlclose = int (*)(void* handle);
using Dlerror = char* (*)();
using Dladdr1 = int (*)(const void* address, Dl_info* info, void** extra, int flags);

// Found once; two threads may both look, and find the same.
struct Loader {
    std::atomic<Dlsym> dlsym;
    std::atomic<Dlvsym> dlvsym;
    std::atomic<Dlopen> dlopen;
    std::atomic<Dlclose> dlclose;
    std::atomic<Dlerror> dlerror;
    std::atomic<Dladdr1> dladdr1;
};
Loader loader;
std::atomic<Dlsym> next_dlsym_;
std::atomic<Dlvsym> next_dlvsym_;
std::atomic<void*> program_handle_;

struct Wanted {
    const char* name;
    const void* found;
};

bool look_in_libc(const Object& object, void* context) {
    auto* wanted = static_cast<Wanted*>(context);
    const char* name = soname(object);
    if (strcmp(name, "libc.so.6") != 0 && strcmp(name, "libdl.so.2") != 0) return false;
    const void* found = address_in(object, wanted->name);
    if (found == nullptr || is_ours(found)) return false;
    wanted->found = found;
    return true;
}

bool is_defined_elsewhere(const Object& object, void* context) {
    return !is_ours(reinterpret_cast<const void*>(object.start)) &&
           defines(object, static_cast<Wanted*>(context)->name);
}

struct Loaded {
    const hooks::Library& library;
    const char* path;
};

bool is_loaded_library(const Object& object, void* context) {
    auto* wanted = static_cast<Loaded*>(context);
    if (!is_of(wanted->library, object)) return false;
    wanted->path = object.name;
    return true;
}

template <class Function>
Function in_libc(std::atomic<Function>& known, const char* name) {
    Function function = known.load(std::memory_order_relaxed);  // only code is read through it
    if (__builtin_expect(function != nullptr, 1)) return function;
    Wanted wanted{name, nullptr};
    each_object(look_in_libc, &wanted);
    function = reinterpret_cast<Function>(const_cast<void*>(wanted.found));
    known.store(function, std::memory_order_relaxed);
    return function;
}

void forget_error() {
    if (Dlerror dlerror = in_libc(loader.dlerror, "dlerror")) dlerror();
}

// A preload behind us that exports the function itself comes before libc's, as it would without us.
template <class Function>
Function next(std::atomic<Function>& known, Function own, const char* name) {
    Function function = known.load(std::memory_order_relaxed);
    if (__builtin_expect(function != nullptr, 1)) return function;
    auto* chained = reinterpret_cast<Function>(find_next(name));
    function = chained != nullptr ? chained : own;
    known.store(function, std::memory_order_relaxed);
    return function;
}

}  // namespace

Dlsym libc_dlsym() {
    return in_libc(loader.dlsym, "dlsym");
}
Dlvsym libc_dlvsym() {
    return in_libc(loader.dlvsym, "dlvsym");
}
Dlsym next_dlsym() {
    return next(next_dlsym_, libc_dlsym(), "dlsym");
}
Dlvsym next_dlvsym() {
    return next(next_dlvsym_, libc_dlvsym(), "dlvsym");
}

void* find_in(void* handle, const char* name) {
    Dlsym dlsym = libc_dlsym();
    void* found = dlsym != nullptr ? dlsym(handle, name) : nullptr;
    if (found == nullptr) forget_error();
    return found;
}

// Asked only where there is something to find: even a success ends what dlerror had kept for the program.
void* find_next(const char* name) {
    Wanted wanted{name, nullptr};
    return each_object(is_defined_elsewhere, &wanted) ? find_in(RTLD_NEXT, name) : nullptr;
}

void* find_in_driver(const hooks::Library& library, const char* name, bool* loaded) {
    *loaded = false;
    Loaded wanted{library, nullptr};
    if (!each_object(is_loaded_library, &wanted)) return nullptr;
    Dlopen dlopen = in_libc(loader.dlopen, "dlopen");
    Dlclose dlclose = in_libc(loader.dlclose, "dlclose");
    void* handle = dlopen != nullptr ? dlopen(wanted.path, RTLD_LAZY | RTLD_NOLOAD) : nullptr;
    *loaded = handle != nullptr;
    if (handle == nullptr) {
        forget_error();
        return nullptr;
    }
    void* found = find_in(handle, name);
    if (dlclose != nullptr) dlclose(handle);
    return found;
}

void* program_handle() {
    void* handle = program_handle_.load(std::memory_order_relaxed);
    Dlopen dlopen = in_libc(loader.dlopen, "dlopen");
    if (handle != nullptr || dlopen == nullptr) return handle;
    handle = dlopen(nullptr, RTLD_LAZY);
    program_handle_.store(handle, std::memory_order_relaxed);
    return handle;
}

// Kept: closing it would take away the message that a failed lookup in it left.
void* libc_handle() {
    static std::atomic<void*> known;
    void* handle = known.load(std::memory_order_relaxed);
    Dlopen dlopen = in_libc(loader.dlopen, "dlopen");
    if (handle != nullptr || dlopen == nullptr) return handle;
    handle = dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);
    known.store(handle, std::memory_order_relaxed);
    return handle;
}

// Opened, not its link map taken for a handle: glibc has a list to search for those only that a dlopen has seen, and
// crashes for a library that came with the program. Another name space than ours is not looked into.
void* find_beside(const void* address, const char* name) {
    Dladdr1 dladdr1 = in_libc(loader.dladdr1, "dladdr1");
    Dlopen dlopen = in_libc(loader.dlopen, "dlopen");
    Dlclose dlclose = in_libc(loader.dlclose, "dlclose");
    Dl_info info;
    void* map = nullptr;
    if (dladdr1 == nullptr || dlopen == nullptr || dlclose == nullptr) return nullptr;
    if (dladdr1(address, &info, &map, RTLD_DL_LINKMAP) == 0) return nullptr;
    void* handle = dlopen(static_cast<link_map*>(map)->l_name, RTLD_LAZY | RTLD_NOLOAD);
    void* found = handle == map ? find_in(handle, name) : nullptr;
    if (handle == nullptr)
        forget_error();
    else
        dlclose(handle);
    return found;
}

void keep_loaded(const char* path) {
    Dlopen dlopen = in_libc(loader.dlopen, "dlopen");
    if (dlopen != nullptr && dlopen(path, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE) == nullptr) forget_error();
}

}  // namespace interpose
}  // namespace gcr
