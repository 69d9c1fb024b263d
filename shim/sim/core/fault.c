// SPDX-License-Identifier: Apache-2.0
#include "fault.h"

#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "machine.h"

enum { MAX_RULES = 64, MAX_TEXT = 8192, MAX_RULE = 160 };

enum action { FAIL, DELAY, DIE, HANG };

struct rule {
    char text[MAX_RULE];
    char function[96];
    long pid;  // 0: any
    unsigned long first;
    unsigned long last;
    enum action action;
    unsigned long value;
    unsigned long calls;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct rule rules[MAX_RULES];
static unsigned count;
static bool environment_read;
static struct timespec file_changed;
static off_t file_size = -1;

static bool parse_count(const char* text, struct rule* rule) {
    char* end;
    rule->last = ULONG_MAX;
    rule->first = 1;
    if (!strcmp(text, "*")) return true;
    rule->first = strtoul(text, &end, 10);
    if (!*end) rule->last = rule->first;
    return rule->first && (!*end || !strcmp(end, "+"));
}

static bool parse_action(const char* text, struct rule* rule) {
    static const struct {
        const char* name;
        enum action action;
    } actions[] = {{"fail=", FAIL}, {"delay=", DELAY}, {"die", DIE}, {"hang", HANG}};
    for (size_t i = 0; i < sizeof actions / sizeof *actions; i++) {
        size_t length = strlen(actions[i].name);
        if (strncmp(text, actions[i].name, length)) continue;
        rule->action = actions[i].action;
        rule->value = strtoul(text + length, NULL, 10);
        return true;
    }
    return false;
}

static bool parse(const char* text, struct rule* rule) {
    char copy[MAX_RULE], *rest = copy;
    snprintf(rule->text, sizeof rule->text, "%s", text);
    snprintf(copy, sizeof copy, "%s", text);
    char *function = strsep(&rest, ":"), *number = strsep(&rest, ":");
    if (!rest) return false;
    char* pid = strchr(function, '@');
    if (pid) {
        *pid = 0;
        rule->pid = strtol(pid + 1, NULL, 10);
    }
    snprintf(rule->function, sizeof rule->function, "%s", function);
    return parse_count(number, rule) && parse_action(rest, rule);
}

// A rule seen before keeps its count: rewriting the file with one more line must not restart the others.
static void add_rule(const char* text, const struct rule* old, unsigned old_count) {
    struct rule rule = {.calls = 0};
    if (count == MAX_RULES || !parse(text, &rule)) return;
    for (unsigned i = 0; i < old_count; i++)
        if (!strcmp(old[i].text, rule.text)) rule.calls = old[i].calls;
    rules[count++] = rule;
}

static void add_rules(char* text, const struct rule* old, unsigned old_count) {
    char* line;
    while ((line = strsep(&text, "\n"))) {
        line[strcspn(line, "#")] = 0;
        char* entry;
        while ((entry = strsep(&line, " ,;\t")))
            if (*entry) add_rule(entry, old, old_count);
    }
}

static void read_file(const char* path, char text[MAX_TEXT]) {
    int file = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t length = file < 0 ? 0 : read(file, text, MAX_TEXT - 1);
    text[length > 0 ? length : 0] = 0;
    if (file >= 0) close(file);
}

static void reload(const char* path) {
    static struct rule old[MAX_RULES];
    unsigned old_count = count;
    memcpy(old, rules, sizeof rules);
    count = 0;
    char text[MAX_TEXT];
    const char* environment = getenv("GCR_SIM_FAULTS");
    snprintf(text, sizeof text, "%s", environment ? environment : "");
    add_rules(text, old, old_count);
    read_file(path, text);
    add_rules(text, old, old_count);
}

static void refresh(void) {
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/faults", sim_machine_directory());
    struct stat status;
    if (stat(path, &status)) status = (struct stat){.st_size = -1};
    bool same = status.st_size == file_size && status.st_mtim.tv_sec == file_changed.tv_sec &&
                status.st_mtim.tv_nsec == file_changed.tv_nsec;
    if (environment_read && same) return;
    environment_read = true;
    file_size = status.st_size;
    file_changed = status.st_mtim;
    reload(path);
}

// cuMemAlloc_v2 and cuMemAlloc_v2_ptds are called cuMemAlloc as well.
static bool names(const struct rule* rule, const char* function) {
    size_t length = strlen(rule->function);
    if (strncmp(rule->function, function, length)) return false;
    const char* suffix = function + length;
    if (!strncmp(suffix, "_v", 2) && suffix[2] >= '1' && suffix[2] <= '9') suffix += 3;
    return !*suffix || !strcmp(suffix, "_ptsz") || !strcmp(suffix, "_ptds") || !strcmp(suffix, "_spt");
}

static bool strikes(const char* function, struct rule* struck) {
    bool found = false;
    pthread_mutex_lock(&mutex);
    refresh();
    for (unsigned i = 0; i < count; i++) {
        struct rule* rule = &rules[i];
        if ((rule->pid && rule->pid != getpid()) || !names(rule, function)) continue;
        rule->calls++;
        if (rule->calls < rule->first || rule->calls > rule->last || found) continue;
        *struck = *rule;
        found = true;
    }
    pthread_mutex_unlock(&mutex);
    return found;
}

sim_result sim_fault(const char* function) {
    struct rule rule = {.action = FAIL};
    if (!strikes(function, &rule)) return SIM_OK;
    switch (rule.action) {
        case FAIL:
            return (sim_result)(SIM_VENDOR_BASE + rule.value);
        case DELAY:
            sim_sleep_ms((unsigned)rule.value);
            return SIM_OK;
        case DIE:
            kill(getpid(), SIGKILL);
            return SIM_OK;
        case HANG:
            for (;;) sim_sleep_ms(1000);
    }
    return SIM_OK;
}
