// SPDX-License-Identifier: Apache-2.0
//
// A library that asks from where it stands: at its constructor, when it is told to, and at its destructor. Built as a
// start-up library (-DNAME=start), which no dlopen ever saw, and as plugins, with the driver behind them or without.
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

#define TEXT_(a) #a
#define TEXT(a) TEXT_(a)

static void say(const char* when, const char* way, void* found) {
    printf(TEXT(NAME) " %s %s: %s, %s\n", when, way, found ? "found" : "null", dlerror() ? "an error" : "no error");
}

static void look(const char* when, const char* name) {
    void* self = dlopen(TEXT(SELF), RTLD_NOLOAD | RTLD_LAZY);
    void* program = dlopen(0, RTLD_LAZY);
    dlerror();
    say(when, "default", dlsym(RTLD_DEFAULT, name));
    say(when, "next", dlsym(RTLD_NEXT, name));
    say(when, "program", program ? dlsym(program, name) : 0);
    say(when, "version", dlvsym(RTLD_DEFAULT, name, "NO_SUCH_1"));
    if (!self) return;
    say(when, "itself", dlsym(self, name));
    dlclose(self);
}

// Before anything else: a handle of this library, which the call above makes, is not there yet.
void look_all(const char* when) {
    say(when, "first", dlsym(RTLD_DEFAULT, "cuMemAlloc_v2"));
    look(when, "cuMemAlloc_v2");
    look(when, "cuNoSuchThing");
    look(when, "no_such_thing");
}

static void* in_thread(void* when) {
    look_all(when);
    return 0;
}

void look_from_a_thread(const char* when) {
    pthread_t thread;
    if (pthread_create(&thread, 0, in_thread, (void*)when) == 0) pthread_join(thread, 0);
}

__attribute__((constructor)) static void begin(void) {
    look_all("constructor");
#ifdef AT_START
    look_from_a_thread("thread of the constructor");  // the loader's lock is not held then
#endif
}

__attribute__((destructor)) static void end(void) {
    look_all("destructor");
}
