// SPDX-License-Identifier: Apache-2.0
#include "touches.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "machine.h"

static struct sim_touch* first;

struct sim_touch* sim_touch_begin_locked(uintptr_t start, size_t size) {
    struct sim_touch* made = malloc(sizeof *made);
    if (!made) return NULL;
    *made = (struct sim_touch){start, size, first, &first};
    if (first) first->link = &made->next;
    first = made;
    return made;
}

void sim_touch_end_locked(struct sim_touch* touch) {
    if (!touch) return;
    *touch->link = touch->next;
    if (touch->next) touch->next->link = touch->link;
    free(touch);
}

static void record(const struct sim_touch* touch) {
    char path[PATH_MAX], line[128];
    snprintf(path, sizeof path, "%s/violations", sim_machine_directory());
    int length = snprintf(line, sizeof line, "process %d: %#zx bytes at %#zx were unmapped under running work\n",
                          getpid(), touch->size, (size_t)touch->start);
    int file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (file < 0) return;
    ssize_t written = write(file, line, (size_t)length);
    (void)written;
    close(file);
}

void sim_touch_unmapped_locked(uintptr_t start, size_t size) {
    for (const struct sim_touch* each = first; each; each = each->next)
        if (each->start < start + size && start < each->start + each->size) record(each);
}
