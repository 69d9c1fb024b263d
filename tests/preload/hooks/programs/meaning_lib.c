// SPDX-License-Identifier: Apache-2.0
//
// A library that asks from where it stands. Compiled with -DNAME=a or b.
#include <dlfcn.h>

#define PASTE_(a, b) a##b
#define PASTE(a, b) PASTE_(a, b)
#define TEXT_(a) #a
#define TEXT(a) TEXT_(a)

const char* which(void) {
    return "library " TEXT(NAME);
}

static const char* say(void* found) {
    return found ? ((const char* (*)(void))found)() : "none";
}

const char* PASTE(next_of_, NAME)(void) {
    return say(dlsym(RTLD_NEXT, "which"));
}
const char* PASTE(default_of_, NAME)(void) {
    return say(dlsym(RTLD_DEFAULT, "which"));
}
