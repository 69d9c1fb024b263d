// SPDX-License-Identifier: Apache-2.0
//
// What a program that looks a symbol up is given: the wrapper of a driver symbol, else exactly what it would find bare.
#ifndef GCR_INTERPOSE_LOOKUP_H
#define GCR_INTERPOSE_LOOKUP_H

#include "hooks/slots.h"

namespace gcr {
namespace interpose {

// The stub jumps to `target` with the caller's own frame and arguments, so that RTLD_NEXT and RTLD_DEFAULT keep the
// caller's meaning; where it is null the stub returns `answer`.
struct Lookup {
    void* target;
    void* answer;
};

// Fills the slot of `index` with the object that follows us in the global scope, if there is one. To be called before
// the program's own lookup, so that the program's is the last the loader's dlerror remembers.
void prepare(hooks::Index index);

// `found` is what the bare program would have been given; `caller` an address in the code that asked.
void* substitute(hooks::Index index, void* found, const void* caller);

}  // namespace interpose
}  // namespace gcr

extern "C" {
gcr::interpose::Lookup gcr_look_up(void* handle, const char* name, const void* caller);
gcr::interpose::Lookup gcr_look_up_version(void* handle, const char* name, const char* version, const void* caller);
}

#endif  // GCR_INTERPOSE_LOOKUP_H
