// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>

#include "abi.h"

static const struct {
    const char* what;
    size_t value;
} ours[] = {
#define SIZE(name) {"size of " #name, sizeof(name)},
#define OFFSET(name, field) {#name "." #field, offsetof(name, field)},
#include "abi_facts.def"
};

int compare_with_ours(const size_t* vendor, size_t count) {
    int differing = 0;
    if (count != sizeof ours / sizeof *ours) return 1;
    for (size_t i = 0; i < count; i++) {
        if (ours[i].value == vendor[i]) continue;
        printf("%s: ours %zu, the vendor's %zu\n", ours[i].what, ours[i].value, vendor[i]);
        differing = 1;
    }
    return differing;
}
