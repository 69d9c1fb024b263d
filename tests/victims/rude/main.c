// SPDX-License-Identifier: Apache-2.0
//
//   rude [HOW PATH]
//
// HOW the driver is loaded: `library` by its path; through plugin.c `deep` or in a `namespace`; `beside` such a plugin.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "rude.h"

#define CALL(name, parameters) int(*name) parameters;
DRIVER_CALLS(CALL)
#undef CALL

enum { kMost = 64 };

char** arguments;
static struct {
    device_pointer at;
    size_t words;
    uint32_t value;
} held[kMost];
static unsigned held_count;

void fail(const char* what) {
    fprintf(stderr, "rude: %s\n", what);
    _exit(1);
}

void must(int result, const char* what) {
    if (result == 0) return;
    fprintf(stderr, "rude: %s returned %d\n", what, result);
    _exit(1);
}

void enter(int ordinal) {
    int device;
    void* context;
    must(cuDeviceGet(&device, ordinal), "cuDeviceGet");
    must(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
    must(cuCtxSetCurrent(context), "cuCtxSetCurrent");
}

void hold(unsigned count, size_t words) {
    for (; count > 0 && held_count < kMost; count--, held_count++) {
        held[held_count].words = words;
        held[held_count].value = 0x9e3779b9u * (held_count + 1);
        must(cuMemAlloc_v2(&held[held_count].at, words * 4), "cuMemAlloc");
        must(cuMemsetD32_v2(held[held_count].at, held[held_count].value, words), "cuMemsetD32");
    }
}

void forget(void) {
    held_count = 0;
}

static uint64_t look(device_pointer at, uint32_t value, size_t words, uint64_t so_far) {
    uint32_t* found = malloc(words * sizeof *found);
    if (!found) fail("no memory");
    must(cuMemcpyDtoH_v2(found, at, words * 4), "cuMemcpyDtoH");
    for (size_t i = 0; i < words; i++) {
        if (found[i] != value) fail("a word of device memory is not what was written");
        so_far = (so_far ^ found[i]) * 0x100000001b3u;  // FNV-1a
    }
    free(found);
    return so_far;
}

const char* digest(void) {
    static char line[64];
    uint64_t state = 0xcbf29ce484222325u;
    for (unsigned i = 0; i < held_count; i++) state = look(held[i].at, held[i].value, held[i].words, state);
    snprintf(line, sizeof line, "%u held, digest %016" PRIx64, held_count, state);
    return line;
}

void use_device(uint32_t value, size_t words) {
    device_pointer at;
    must(cuMemAlloc_v2(&at, words * 4), "cuMemAlloc");
    must(cuMemsetD32_v2(at, value, words), "cuMemsetD32");
    must(cuCtxSynchronize(), "cuCtxSynchronize");
    look(at, value, words, 0);
    must(cuMemFree_v2(at), "cuMemFree");
}

// ---- dialogue -----------------------------------------------------------------------------------------------------

static const char* read_back(const char* argument) {
    (void)argument;
    return digest();
}

static const char* hold_more(const char* argument) {
    hold((unsigned)atoi(argument), 100000);
    return "ok";
}

static const struct word main_words[] = {{"?", read_back}, {"hold", hold_more}, {"storm", storm}, {"calm", calm}, {0}};

static const char* answer(char* line) {
    const struct word* files[] = {main_words, signal_words, process_words, thread_words, limit_words, memory_words};
    char* argument = strchr(line, ' ');
    if (argument) *argument++ = 0;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        for (const struct word* word = files[i]; word->name; word++)
            if (strcmp(word->name, line) == 0) return word->say(argument ? argument : "");
    return "what?";
}

static void say(const char* line) {
    size_t length = strlen(line);
    char whole[length + 2];
    memcpy(whole, line, length);
    whole[length] = '\n';
    if (write(1, whole, length + 1) != (ssize_t)length + 1) _exit(1);
}

// Byte by byte: a program that execs leaves nothing unread behind, and one that is interrupted goes on.
static bool next_line(char* line, size_t room) {
    for (size_t length = 0; length + 1 < room;) {
        ssize_t got = read(0, line + length, 1);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return false;
        if (line[length] == '\n') {
            line[length] = 0;
            return true;
        }
        length++;
    }
    return false;
}

void converse(void) {
    char line[4096];
    while (next_line(line, sizeof line)) say(answer(line));
    _exit(0);
}

// ---- the driver -----------------------------------------------------------------------------------------------------

static void* library;

static void* find_by_handle(const char* name) {
    return dlsym(library, name);
}

typedef void* (*Find)(const char* name);

static Find load(const char* how, const char* path) {
    if (strcmp(how, "beside") == 0) return load("deep", path) ? load("library", "libcuda.so.1") : NULL;
    bool apart = strcmp(how, "namespace") == 0, deep = strcmp(how, "deep") == 0;
    library = apart ? dlmopen(LM_ID_NEWLM, path, RTLD_NOW) : dlopen(path, RTLD_NOW | (deep ? RTLD_DEEPBIND : 0));
    if (!library) fail(dlerror());
    return apart || deep ? (Find)dlsym(library, "find_by_link") : find_by_handle;
}

static void open_driver(Find find) {
#define CALL(name, parameters)    \
    *(void**)&name = find(#name); \
    if (!name) fail(#name " is not in the driver");
    DRIVER_CALLS(CALL)
#undef CALL
}

int main(int count, char** values) {
    arguments = values;
    open_driver(count > 2 ? load(values[1], values[2]) : load("library", "libcuda.so.1"));
    must(cuInit(0), "cuInit");
    enter(0);
    hold(4, 300000);
    say("ready");
    converse();
}
