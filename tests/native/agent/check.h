// SPDX-License-Identifier: Apache-2.0
//
// CHECK for test programs: says what did not hold, and where, and ends the program with 1.
#ifndef GCR_TEST_CHECK_H
#define GCR_TEST_CHECK_H

#include <stdio.h>
#include <stdlib.h>

#define CHECK(condition)                                                              \
    do {                                                                              \
        if (condition) break;                                                         \
        fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition); \
        exit(1);                                                                      \
    } while (0)

#endif
