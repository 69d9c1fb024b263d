// SPDX-License-Identifier: Apache-2.0
//
// The shared objects of this process, read from their own headers in memory.
//
// Why not dladdr and dlsym: we export dlsym, a failed dlsym leaves a message in the program's dlerror, and libdl need not
// be loaded before glibc 2.34. dl_iterate_phdr is in libc itself, everywhere.
// Any thread; takes the loader's own lock for the time of one walk; allocates nothing.
#ifndef GCR_INTERPOSE_OBJECTS_H
#define GCR_INTERPOSE_OBJECTS_H

#include <link.h>
#include <stdint.h>

#include "hooks/libraries.h"

namespace gcr {
namespace interpose {

struct Object {
    uintptr_t base;
    uintptr_t start, end;  // what its segments span
    const char* name;  // as the loader knows it; "" for the program itself
    const ElfW(Dyn) * dynamic;
};

// Objects in the loader's order: the program, the preloads, what they need, then what was opened later.
// `visit` returns true to stop; the walk returns whether it was stopped.
bool each_object(bool (*visit)(const Object& object, void* context), void* context);

bool object_of(const void* address, Object* found);
uintptr_t entry(const Object& object, ElfW(Sxword) tag);  // an address in its dynamic section; 0: it has none
uint64_t number(const Object& object, ElfW(Sxword) tag);
bool defines(const Object& object, const char* symbol);
const void* address_in(const Object& object, const char* symbol);  // its default version; null if it has none
const char* soname(const Object& object);  // "" if it has none

bool is_name_of(const hooks::Library& library, const char* name);
bool is_of(const hooks::Library& library, const Object& object);  // by the name of its file, or its own
bool is_driver(const Object& object);  // of any vendor's library
bool in_driver(const void* address);
void remember_driver(const hooks::Library& library, const Object& object);  // one that stays loaded
bool in_remembered_driver(const void* address);  // cheap: no walk
bool is_ours(const void* address);

}  // namespace interpose
}  // namespace gcr

#endif  // GCR_INTERPOSE_OBJECTS_H
