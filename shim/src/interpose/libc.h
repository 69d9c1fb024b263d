// SPDX-License-Identifier: Apache-2.0
//
// The loader's own functions, found without asking the loader for them: see objects.h.
// Any thread. Null where the process has none (glibc before 2.34 keeps them in libdl, which may not be loaded).
#ifndef GCR_INTERPOSE_LIBC_H
#define GCR_INTERPOSE_LIBC_H

#include "hooks/libraries.h"

namespace gcr {
namespace interpose {

using Dlsym = void* (*)(void* handle, const char* name);
using Dlvsym = void* (*)(void* handle, const char* name, const char* version);

Dlsym libc_dlsym();
Dlvsym libc_dlvsym();

// What a bare program's call of dlsym would reach: libc's, or that of a preload that follows us.
Dlsym next_dlsym();
Dlvsym next_dlvsym();

// Lookups of ours. A failed one leaves no message behind: the program may ask dlerror at any time.
void* find_next(const char* name);                    // after us in the global scope
void* find_in(void* handle, const char* name);
// In the vendor's library, only if the process has it.
void* find_in_driver(const hooks::Library& library, const char* name, bool* loaded);
void* program_handle();                               // the global scope, from its beginning
void* libc_handle();                                  // an object that has no vendor's symbols
void* find_beside(const void* address, const char* name);  // in the scope of the object that holds `address`
void keep_loaded(const char* path);                   // we hold addresses inside it: it must not be unloaded

}  // namespace interpose
}  // namespace gcr

#endif  // GCR_INTERPOSE_LIBC_H
