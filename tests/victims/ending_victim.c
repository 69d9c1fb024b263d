// SPDX-License-Identifier: Apache-2.0
//
// Programs that end, each in its own way, and the one that starts them.
//
//   ending_victim host                uses the device, starts a program for each line of standard input, says how it ended
//   ending_victim WAY MS CODE         uses the device, says `up`, and MS milliseconds later ends in that way with CODE
//   ending_victim code CODE           ends at once
// ENDING_HANDLER_MS: how long each exit handler of the way `handlers` takes.
//
// The host's lines: `WAY MS CODE`, answered by `up` and, once that program has ended, by `ended STATUS` (128 + n for a
// signal); and `?`, answered by `right` if every word of the host's device memory is what it was.
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { kBuffers = 3, kWords = 64 * 1024, kValue = 0x5eed, kWrong = 99, kHandlerMs = 3, kPauseUs = 3000, kExecMs = 5 };

typedef unsigned long long device_pointer;

static void* library;
static int (*cu_init)(unsigned);
static int (*context_retain)(void**, int);
static int (*context_release)(int);
static int (*context_reset)(int);
static int (*context_set)(void*);
static int (*context_get)(void**);
static int (*context_synchronize)(void);
static int (*mem_alloc)(device_pointer*, size_t);
static int (*mem_free)(device_pointer);
static int (*mem_info)(size_t*, size_t*);
static int (*mem_set)(device_pointer, unsigned, size_t);
static int (*download)(void*, device_pointer, size_t);

static const struct {
    const char* name;
    void* slot;
} kCalls[] = {
    {"cuInit", &cu_init},
    {"cuDevicePrimaryCtxRetain", &context_retain},
    {"cuDevicePrimaryCtxRelease_v2", &context_release},
    {"cuDevicePrimaryCtxReset_v2", &context_reset},
    {"cuCtxSetCurrent", &context_set},
    {"cuCtxGetCurrent", &context_get},
    {"cuCtxSynchronize", &context_synchronize},
    {"cuMemAlloc_v2", &mem_alloc},
    {"cuMemFree_v2", &mem_free},
    {"cuMemGetInfo_v2", &mem_info},
    {"cuMemsetD32_v2", &mem_set},
    {"cuMemcpyDtoH_v2", &download},
};

static void* context;
static device_pointer buffers[kBuffers];
static const char* self;
static int code;
static _Atomic int idle;  // set by the main thread: the other one is to leave the driver alone

static void must(int result, const char* what) {
    if (!result) return;
    fprintf(stderr, "ending_victim %d: %s returned %d\n", (int)getpid(), what, result);
    _exit(kWrong);
}

static void enter(void) {
    library = dlopen("libcuda.so.1", RTLD_NOW);
    must(!library, "dlopen");
    for (size_t i = 0; i < sizeof kCalls / sizeof *kCalls; i++) {
        *(void**)kCalls[i].slot = dlsym(library, kCalls[i].name);
        must(!*(void**)kCalls[i].slot, kCalls[i].name);
    }
    must(cu_init(0), "cuInit");
    must(context_retain(&context, 0), "cuDevicePrimaryCtxRetain");
    must(context_set(context), "cuCtxSetCurrent");
    for (int i = 0; i < kBuffers; i++) {
        must(mem_alloc(&buffers[i], kWords * 4), "cuMemAlloc");
        must(mem_set(buffers[i], kValue + (unsigned)i, kWords), "cuMemsetD32");
    }
}

static int all_right(void) {
    static uint32_t words[kWords];
    for (int i = 0; i < kBuffers; i++) {
        must(download(words, buffers[i], sizeof words), "cuMemcpyDtoH");
        for (int at = 0; at < kWords; at++)
            if (words[at] != (uint32_t)(kValue + i)) return 0;
    }
    return 1;
}

// ---- ends ---------------------------------------------------------------------------------------------------------

// The driver has shut down, or not yet: whether it says the same of everything is what a program may count on.
static void call_the_driver(void) {
    const char* wanted = getenv("ENDING_HANDLER_MS");
    size_t left, all;
    int before = mem_info(&left, &all);
    usleep((unsigned)(wanted ? atoi(wanted) : kHandlerMs) * 1000);
    int after = mem_free(buffers[kBuffers - 1]);
    if (before == 0) must(after != 0 && after != 4, "cuMemFree in a handler, after cuMemGetInfo succeeded");
    if (before == 4) must(after != 4, "cuMemFree in a handler of a driver that has shut down");
}

static void late_handler(void) {
    must(!all_right(), "the words in a handler that comes before the driver's");
    call_the_driver();
}

static void early_handler(void) {
    call_the_driver();
}

static void exit_by_return(void) {}

static void* exit_here(void* argument) {
    (void)argument;
    exit(code);
}

static void exit_in_thread(void) {
    pthread_t thread;
    must(pthread_create(&thread, NULL, exit_here, NULL), "pthread_create");
    for (;;) context_synchronize();
}

static void exit_quickly(void) {
    quick_exit(code);
}

static void exit_at_once(void) {
    _exit(code);
}

static void be_killed(void) {
    raise(SIGKILL);
}

static void become_daemon(void) {
    if (fork()) return;
    setsid();
    if (fork()) _exit(0);
    usleep(kPauseUs);
    exit(0);  // with the handlers that the first process registered
}

static void execute(void) {
    char number[16];
    snprintf(number, sizeof number, "%d", code);
    execl(self, self, "code", number, (char*)NULL);
    must(errno, "execl");
}

static void execute_another(void) {
    char number[16], wait[16];
    snprintf(number, sizeof number, "%d", code);
    snprintf(wait, sizeof wait, "%d", kExecMs);
    execl(self, self, "again", wait, number, (char*)NULL);
    must(errno, "execl");
}

static void reset_context(void) {
    must(context_reset(0), "cuDevicePrimaryCtxReset");
    usleep(kPauseUs);
}

static void release_context(void) {
    must(context_release(0), "cuDevicePrimaryCtxRelease");
    usleep(kPauseUs);
}

static void unload(void) {
    dlclose(library);
    usleep(kPauseUs);
}

static const struct way {
    const char* name;
    void (*end)(void);
    int works;  // a second thread uses the driver meanwhile, and goes on
} kWays[] = {
    {"return", exit_by_return, 1},   {"thread", exit_in_thread, 0}, {"quick", exit_quickly, 1},
    {"handlers", exit_by_return, 0}, {"daemon", become_daemon, 0},  {"exec", execute, 1},
    {"another", execute_another, 1}, {"again", exit_by_return, 0},  {"reset", reset_context, 0},
    {"release", release_context, 0}, {"unload", unload, 0},         {"_exit", exit_at_once, 1},
    {"killed", be_killed, 1},
};

static void* work(void* argument) {
    (void)argument;
    if (context_set(context)) return NULL;
    while (!idle && !mem_set(buffers[0], kValue, kWords)) {  // until the driver has shut down
    }
    return NULL;
}

static int end(const struct way* way, unsigned milliseconds) {
    int handlers = !strcmp(way->name, "handlers");
    if (handlers) atexit(early_handler);
    enter();
    if (handlers) atexit(late_handler);
    pthread_t thread;
    if (way->works) must(pthread_create(&thread, NULL, work, NULL), "pthread_create");
    if (strcmp(way->name, "again")) puts("up");
    fflush(stdout);
    usleep(milliseconds * 1000);
    must(!all_right(), "the words at the end");
    way->end();
    return code;
}

// ---- the host -----------------------------------------------------------------------------------------------------

static pid_t start(char** words) {
    pid_t child = fork();
    if (child) return child;
    execv(self, words);
    _exit(kWrong);
}

static int status_of(pid_t child) {
    int status;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

static void run(char* line) {
    char* words[5] = {(char*)self};
    for (int i = 1; i < 4; i++) words[i] = strtok(i == 1 ? line : NULL, " \n");
    must(!words[3], "a line of three words");
    int status = status_of(start(words));
    printf("ended %d\n", status);
}

static int host(void) {
    char line[64];
    enter();
    puts("ready");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        if (line[0] == '?')
            puts(all_right() ? "right" : "wrong");
        else
            run(line);
        fflush(stdout);
    }
    return 0;
}

int main(int count, char** values) {
    self = "/proc/self/exe";
    code = count > 2 ? atoi(values[count - 1]) : 0;
    if (count == 2 && !strcmp(values[1], "host")) return host();
    if (count == 3 && !strcmp(values[1], "code")) return code;
    for (size_t i = 0; count == 4 && i < sizeof kWays / sizeof *kWays; i++)
        if (!strcmp(values[1], kWays[i].name)) return end(&kWays[i], (unsigned)atoi(values[2]));
    fprintf(stderr, "ending_victim: no such way\n");
    return kWrong;
}
