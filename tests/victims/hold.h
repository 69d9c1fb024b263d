// SPDX-License-Identifier: Apache-2.0
//
// Held programs, as in dialogue.py: `ready`, then one line that says how much to do, or `on` until standard input ends.
#ifndef GCR_VICTIMS_HOLD_H
#define GCR_VICTIMS_HOLD_H

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// The line. Nothing that follows it is read.
static inline const char* held(void) {
    static char line[256];
    puts("ready");
    fflush(stdout);
    if (!fgets(line, sizeof line, stdin)) exit(1);
    line[strcspn(line, "\n")] = 0;
    return line;
}

// Whether standard input ended within so many milliseconds.
static inline int over(int milliseconds) {
    struct pollfd input = {0, POLLIN, 0};
    return poll(&input, 1, milliseconds) > 0;
}

#endif
