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

enum { DEADLINE_SECONDS = 30, MAX_RISKY = 16 };

static jmp_buf next_section;

// ---- output -------------------------------------------------------------------------------------------------------
void print_result(const char* where, const char* name, CUresult result) {
    const char* text = NULL;
    if (cuGetErrorName(result, &text) || !text) text = "not a result of the driver";
    printf("%s.%s: %s\n", where, name, text);
    fflush(stdout);
}

void print_value(const char* where, const char* name, long long value) {
    printf("%s.%s: %lld\n", where, name, value);
    fflush(stdout);
}

// ---- preparation --------------------------------------------------------------------------------------------------
void need(const char* what, CUresult result) {
    if (!result) return;
    printf("%s: cannot go on, %s gave %d\n", section, what, result);
    fflush(stdout);
    longjmp(next_section, 1);
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

// ---- risky cases --------------------------------------------------------------------------------------------------
struct child {
    pid_t pid;
    int output;
};

static struct child start_child(const char* self, const char* name) {
    int ends[2];
    if (pipe(ends)) exit(2);
    pid_t pid = fork();
    if (pid == 0) {
        dup2(ends[1], 1);
        close(ends[0]);
        close(ends[1]);
        execl(self, self, "--case", name, (char*)NULL);
        _exit(127);
    }
    close(ends[1]);
    return (struct child){pid, ends[0]};
}

static void finish_child(struct child child, const char* name) {
    char buffer[4096];
    ssize_t length;
    while ((length = read(child.output, buffer, sizeof buffer)) > 0) fwrite(buffer, 1, (size_t)length, stdout);
    int status = 0;
    waitpid(child.pid, &status, 0);
    if (WIFSIGNALED(status)) printf("risky.%s: died of signal %d\n", name, WTERMSIG(status));
    fflush(stdout);
}

static int run_case(const char* name) {
    section = "risky";
    alarm(DEADLINE_SECONDS);
    if (setjmp(next_section)) _exit(2);
    need("cuInit", cuInit(0));
    use_device();
    for (unsigned i = 0; i < risky_count; i++) {
        if (strcmp(risky_cases[i].name, name)) continue;
        risky_cases[i].run();
        fflush(stdout);
        _exit(0);  // not exit: a context with an error may make the driver's own clean-up complain
    }
    return 2;
}

static void run_section(const char* name, void (*function)(void)) {
    section = name;
    if (!setjmp(next_section)) function();
}

static void run_all(void) {
    run_section("none", before_context);
    run_section("device", devices);
    run_section("resolve", resolving);
    run_section("primary", primary_contexts);
    run_section("start", use_device);
    run_section("alloc", allocations);
    run_section("pool", pools);
    run_section("host", host_memory);
    run_section("pointer", pointers);
    run_section("reserve", reservations);
    run_section("map", mappings);
    run_section("share", sharing);
    run_section("copy", copies);
    run_section("stream", streams);
    run_section("event", events);
    run_section("capture", captures);
    run_section("graph", graphs);
    run_section("ipc", interprocess);
    run_section("context", contexts);
    run_section("checkpoint", checkpoints);
}

int main(int count, char** arguments) {
    load_driver();
    if (count == 3 && !strcmp(arguments[1], "--case")) return run_case(arguments[2]);
    alarm(DEADLINE_SECONDS);
    run_all();
    // Only now: what they hold would show in the memory figures. All at once: starting the driver takes most of the time.
    struct child children[MAX_RISKY];
    for (unsigned i = 0; i < risky_count; i++) children[i] = start_child("/proc/self/exe", risky_cases[i].name);
    for (unsigned i = 0; i < risky_count; i++) finish_child(children[i], risky_cases[i].name);
    return 0;
}
