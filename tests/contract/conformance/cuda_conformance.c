// SPDX-License-Identifier: Apache-2.0
#include "conformance.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define FUNCTION(name, parameters) CUresult(*name) parameters;
#include "driver.def"
#undef FUNCTION

const char* section = "";

enum { DEADLINE_SECONDS = 20, MAX_RISKY = 16 };

static jmp_buf next_part;

// ---- output -------------------------------------------------------------------------------------------------------
void print_result(const char* where, const char* name, CUresult result) {
    const char* text = NULL;
    if (cuGetErrorName(result, &text) || !text) text = "not a result of the driver";
    printf("%s.%s: %s\n", where, name, text);
}

void print_value(const char* where, const char* name, long long value) {
    printf("%s.%s: %lld\n", where, name, value);
}

// ---- preparation --------------------------------------------------------------------------------------------------
void need(const char* what, CUresult result) {
    if (!result) return;
    printf("%s: cannot go on, %s gave %d\n", section, what, result);
    longjmp(next_part, 1);
}

CUmemAllocationProp device_memory(int exportable) {
    return (CUmemAllocationProp){.type = PINNED, .requested = exportable ? POSIX_FD : 0, .location = {ON_DEVICE, 0}};
}

CUmemAccessDesc access_of(int flags) {
    return (CUmemAccessDesc){{ON_DEVICE, 0}, flags};
}

size_t granularity(void) {
    CUmemAllocationProp wanted = device_memory(1);
    size_t bytes = 0;
    need("granularity", cuMemGetAllocationGranularity(&bytes, &wanted, 0));
    return bytes;
}

static void load_driver(void) {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        exit(2);
    }
#define FUNCTION(name, parameters)                        \
    *(void**)&name = dlsym(library, #name);               \
    if (!name) {                                          \
        fprintf(stderr, "the driver has no " #name "\n"); \
        exit(2);                                          \
    }
#include "driver.def"
#undef FUNCTION
}

static void use_device(void) {
    CUcontext context;
    need("cuDevicePrimaryCtxRetain", cuDevicePrimaryCtxRetain(&context, 0));
    need("cuCtxSetCurrent", cuCtxSetCurrent(context));
}

// ---- parts --------------------------------------------------------------------------------------------------------
// Each in a process of its own, so that a crash or a context with an error ends that part alone.
enum start { NOTHING, INITIALIZED, CONTEXT };

static const struct part {
    const char* name;
    void (*run)(void);
    enum start start;
} parts[] = {
    {"none", before_context, NOTHING},
    {"device", devices, INITIALIZED},
    {"resolve", resolving, INITIALIZED},
    {"primary", primary_contexts, INITIALIZED},
    {"alloc", allocations, CONTEXT},
    {"pool", pools, CONTEXT},
    {"pool_memory", pool_memory, CONTEXT},
    {"host", host_memory, CONTEXT},
    {"pointer", pointers, CONTEXT},
    {"reserve", reservations, CONTEXT},
    {"map", mappings, CONTEXT},
    {"share", sharing, CONTEXT},
    {"copy", copies, CONTEXT},
    {"stream", streams, CONTEXT},
    {"event", events, CONTEXT},
    {"capture", captures, CONTEXT},
    {"graph", graphs, CONTEXT},
    {"ipc", interprocess, CONTEXT},
    {"context", contexts, CONTEXT},
    {"checkpoint", checkpoints, CONTEXT},
};
enum { PARTS = sizeof parts / sizeof *parts };

static void prepare(enum start start) {
    if (start != NOTHING) need("cuInit", cuInit(0));
    if (start == CONTEXT) use_device();
}

static const struct part* part_named(const char* name) {
    for (unsigned i = 0; i < PARTS; i++)
        if (!strcmp(parts[i].name, name)) return &parts[i];
    exit(2);
}

static int run_part(const struct part* part) {
    section = part->name;
    if (setjmp(next_part)) return 0;
    prepare(part->start);
    part->run();
    return 0;
}

static int run_case(const char* name) {
    section = "risky";
    if (setjmp(next_part)) _exit(0);
    prepare(CONTEXT);
    for (unsigned i = 0; i < risky_count; i++) {
        if (strcmp(risky_cases[i].name, name)) continue;
        risky_cases[i].run();
        _exit(0);  // not exit: a context with an error may make the driver's own clean-up complain
    }
    return 2;
}

// ---- children -----------------------------------------------------------------------------------------------------
struct child {
    pid_t pid;
    FILE* output;
};

static struct child start_child(const char* kind, const char* name) {
    int ends[2];
    if (pipe(ends)) exit(2);
    pid_t pid = fork();
    if (pid == 0) {
        dup2(ends[1], 1);
        close(ends[0]);
        close(ends[1]);
        execl("/proc/self/exe", "conformance", kind, name, (char*)NULL);
        _exit(127);
    }
    close(ends[1]);
    return (struct child){pid, fdopen(ends[0], "r")};
}

static void finish_child(struct child child, const char* name) {
    char line[512], last[512] = "its start";
    while (fgets(line, sizeof line, child.output)) {
        fputs(line, stdout);
        snprintf(last, sizeof last, "%.*s", (int)strcspn(line, ":\n"), line);
    }
    fclose(child.output);
    int status = 0;
    waitpid(child.pid, &status, 0);
    if (WIFSIGNALED(status)) printf("%s: died of signal %d after %s\n", name, WTERMSIG(status), last);
    if (WIFEXITED(status) && WEXITSTATUS(status)) printf("%s: exit %d after %s\n", name, WEXITSTATUS(status), last);
}

static int run_all(void) {
    // One after the other: what another process holds would show in the memory figures.
    for (unsigned i = 0; i < PARTS; i++) finish_child(start_child("--section", parts[i].name), parts[i].name);
    // All at once: starting the driver takes most of the time.
    struct child children[MAX_RISKY];
    for (unsigned i = 0; i < risky_count; i++) children[i] = start_child("--case", risky_cases[i].name);
    for (unsigned i = 0; i < risky_count; i++) finish_child(children[i], risky_cases[i].name);
    return 0;
}

int main(int count, char** arguments) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (count != 3) return run_all();
    load_driver();
    alarm(DEADLINE_SECONDS);
    return strcmp(arguments[1], "--case") ? run_part(part_named(arguments[2])) : run_case(arguments[2]);
}
