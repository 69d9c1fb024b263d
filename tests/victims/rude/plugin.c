// SPDX-License-Identifier: Apache-2.0
//
// A plugin that is linked to the driver. With RTLD_DEEPBIND, or in a name space of its own, its links lead to the driver
// itself, past every preloaded library.
#include <stddef.h>
#include <string.h>

#define DRIVER_CALLS_BY_LINK
#include "rude.h"

void* find_by_link(const char* name) {
#define CALL(call, parameters) \
    if (strcmp(name, #call) == 0) return (void*)call;
    DRIVER_CALLS(CALL)
#undef CALL
    return NULL;
}
