// SPDX-License-Identifier: Apache-2.0
//
// Memory: a device that is full, a context that is reset.
#include <stdio.h>
#include <stdlib.h>

#include "rude.h"

enum { kChunks = 256, kMost = 2 * kChunks, kOutOfMemory = 2 };

static device_pointer taken[kMost];
static unsigned taken_count;

static const char* fill_up(const char* argument) {
    int result = 0;
    size_t left, total;
    (void)argument;
    must(cuMemGetInfo_v2(&left, &total), "cuMemGetInfo");
    while (taken_count < kMost && (result = cuMemAlloc_v2(&taken[taken_count], total / kChunks)) == 0) taken_count++;
    return result == kOutOfMemory ? "out of memory" : "another error";
}

static const char* say_taken(const char* argument) {
    static char line[16];
    (void)argument;
    snprintf(line, sizeof line, "%u", taken_count);
    return line;
}

static const char* free_up(const char* argument) {
    (void)argument;
    while (taken_count > 0) must(cuMemFree_v2(taken[--taken_count]), "cuMemFree");
    return "ok";
}

static void full_once(void) {
    if (fill_up("")[0] != 'o') fail("no room is another error");
    free_up("");
    use_device(37, 1000);
}

// ---- resets, of a device where nothing else is ----------------------------------------------------------------------

enum { kOther = 1 };

static void reset_once(void) {
    int device;
    enter(kOther);
    use_device(41, 1000);
    device_pointer lost;
    must(cuMemAlloc_v2(&lost, 3 << 20), "cuMemAlloc");
    must(cuDeviceGet(&device, kOther), "cuDeviceGet");
    must(cuDevicePrimaryCtxReset_v2(device), "cuDevicePrimaryCtxReset");
    enter(0);
    use_device(43, 1000);
}

static const char* reset_own(const char* argument) {
    (void)argument;
    must(cuDevicePrimaryCtxReset_v2(0), "cuDevicePrimaryCtxReset");
    forget();
    enter(0);
    hold(3, 5000);
    return "ok";
}

const struct word memory_words[] = {
    {"fill_up", fill_up}, {"taken", say_taken}, {"free_up", free_up}, {"reset", reset_own}, {0},
};
const struct rude_storm memory_storms[] = {{"full", full_once}, {"resets", reset_once}, {0}};
