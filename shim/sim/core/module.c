// SPDX-License-Identifier: Apache-2.0
#include "module.h"

#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "gcr_sim_kernel.h"

enum { MAX_VIEWS = 16, MAX_NAME = 512 };

// ---- loading ------------------------------------------------------------------------------------------------------
// The image comes without a length: an ELF file ends with its section headers.
static size_t image_size(const void* image) {
    const Elf64_Ehdr* header = image;
    if (memcmp(header->e_ident, ELFMAG, SELFMAG) || header->e_type != ET_DYN || !header->e_shnum) return 0;
    return header->e_shoff + (size_t)header->e_shentsize * header->e_shnum;
}

static bool write_all(int file, const char* bytes, size_t size) {
    for (size_t done = 0; done < size;) {
        ssize_t part = write(file, bytes + done, size - done);
        if (part <= 0) return false;
        done += (size_t)part;
    }
    return true;
}

static void* open_image(const void* image) {
    size_t size = image_size(image);
    int file = size ? memfd_create("gcr-sim-module", MFD_CLOEXEC) : -1;
    if (file < 0) return NULL;
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    void* library = write_all(file, image, size) ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    close(file);
    return library;
}

static sim_result enter(struct sim_context* context, void* library, struct sim_module** module) {
    if (!library) return SIM_INVALID_IMAGE;
    struct sim_module* made = calloc(1, sizeof *made);
    if (!made || !sim_object_add_locked(made, SIM_MODULE)) {
        free(made);
        dlclose(library);
        return SIM_OUT_OF_MEMORY;
    }
    made->context = context;
    made->library = library;
    if (context) {
        made->next = context->modules;
        context->modules = made;
    }
    *module = made;
    return SIM_OK;
}

sim_result sim_module_load(struct sim_context* context, const void* image, struct sim_module** module) {
    return enter(context, open_image(image), module);
}

sim_result sim_module_load_file(struct sim_context* context, const char* path, struct sim_module** module) {
    if (access(path, R_OK)) return SIM_FILE_NOT_FOUND;
    char whole[4096];  // with a slash, so that dlopen never searches for it
    if (!realpath(path, whole)) return SIM_FILE_NOT_FOUND;
    return enter(context, dlopen(whole, RTLD_NOW | RTLD_LOCAL), module);
}

static void take_down(struct sim_module* module) {
    sim_object_remove_locked(module);
    while (module->functions) {
        struct sim_function* gone = module->functions;
        module->functions = gone->next;
        sim_object_remove_locked(gone);
        free(gone);
    }
    while (module->globals) {
        struct sim_global* gone = module->globals;
        module->globals = gone->next;
        sim_allocation_free(gone->allocation);
        free(gone);
    }
    dlclose(module->library);
    free(module);
}

void sim_module_unload(struct sim_module* module) {
    if (module->context) {
        struct sim_module** link = &module->context->modules;
        while (*link != module) link = &(*link)->next;
        *link = module->next;
    }
    take_down(module);
}

void sim_modules_unload_of(struct sim_context* context) {
    while (context->modules) sim_module_unload(context->modules);
}

// ---- functions and variables --------------------------------------------------------------------------------------
static const void* beside(const struct sim_module* module, const char* name, const char* suffix) {
    char whole[MAX_NAME];
    int length = snprintf(whole, sizeof whole, "%s%s", name, suffix);
    return length > 0 && (size_t)length < sizeof whole ? dlsym(module->library, whole) : NULL;
}

sim_result sim_module_function(struct sim_module* module, const char* name, struct sim_function** function) {
    for (*function = module->functions; *function; *function = (*function)->next)
        if (!strcmp((*function)->name, name)) return SIM_OK;
    const uint32_t* params = beside(module, name, "__params");
    void* entry = params ? dlsym(module->library, name) : NULL;
    if (!entry || params[0] > SIM_MAX_PARAMS) return SIM_NOT_FOUND;
    struct sim_function* made = calloc(1, sizeof *made + strlen(name) + 1);
    if (!made || !sim_object_add_locked(made, SIM_FUNCTION)) {
        free(made);
        return SIM_OUT_OF_MEMORY;
    }
    made->module = module;
    memcpy(&made->entry, &entry, sizeof entry);
    made->params = params;
    strcpy(made->name, name);
    made->next = module->functions;
    module->functions = *function = made;
    return SIM_OK;
}

static sim_result make_global(struct sim_context* context, const void* contents, uint64_t size,
                              struct sim_global* made) {
    sim_result result = sim_allocate(context, size, SIM_ALLOCATION_DEVICE, &made->allocation);
    if (result) return result;
    struct sim_view view = sim_view_take_locked(context, made->allocation->range.start, size, true);
    memcpy(view.memory, contents, size);
    sim_view_give_back_locked(&view);
    return SIM_OK;
}

sim_result sim_module_global(struct sim_module* module, struct sim_context* context, const char* name,
                             struct sim_allocation** allocation) {
    for (struct sim_global* known = module->globals; known; known = known->next) {
        if (strcmp(known->name, name)) continue;
        *allocation = known->allocation;
        return SIM_OK;
    }
    const uint64_t* size = beside(module, name, "__global");
    const void* contents = size ? dlsym(module->library, name) : NULL;
    if (!contents) return SIM_NOT_FOUND;
    struct sim_global* made = calloc(1, sizeof *made + strlen(name) + 1);
    if (!made) return SIM_OUT_OF_MEMORY;
    sim_result result = make_global(context, contents, *size, made);
    if (result) {
        free(made);
        return result;
    }
    strcpy(made->name, name);
    made->next = module->globals;
    module->globals = made;
    *allocation = made->allocation;
    return SIM_OK;
}

// Natural alignment, as in a C struct.
sim_result sim_function_param(const struct sim_function* function, size_t index, size_t* offset, size_t* size) {
    if (index >= function->params[0]) return SIM_INVALID_VALUE;
    size_t at = 0;
    for (size_t i = 0;; i++) {
        size_t bytes = function->params[1 + i], alignment = bytes > 8 ? 8 : bytes;
        at = (at + alignment - 1) / alignment * alignment;
        if (i == index) {
            *offset = at;
            *size = bytes;
            return SIM_OK;
        }
        at += bytes;
    }
}

// ---- kernels ------------------------------------------------------------------------------------------------------
struct kernel {
    struct sim_operation operation;
    struct sim_grid grid;
    void* params[SIM_MAX_PARAMS];
    _Alignas(8) char bytes[];
};

struct running {
    struct gcr_sim_launch launch;  // first: what the kernel gets is a pointer to it
    struct sim_stream* stream;
    struct sim_view views[MAX_VIEWS];
    unsigned count;
};

static void* view(struct gcr_sim_launch* launch, uint64_t pointer, size_t size, int write) {
    struct running* self = (struct running*)launch;
    void* memory = NULL;
    sim_lock();
    if (self->count < MAX_VIEWS) {
        self->views[self->count] = sim_view_take_locked(self->stream->context, (uintptr_t)pointer, size, write != 0);
        memory = self->views[self->count++].memory;
    }
    if (!memory) sim_context_fail(self->stream->context, SIM_ILLEGAL_ADDRESS);
    sim_unlock();
    return memory;
}

static int stopping(struct gcr_sim_launch* launch) {
    sim_lock();
    int stop = ((struct running*)launch)->stream->stopping;
    sim_unlock();
    return stop;
}

static void run_kernel(struct sim_operation* operation, struct sim_stream* stream) {
    struct kernel* self = (struct kernel*)operation;
    struct running running = {.launch = {.view = view, .stopping = stopping}, .stream = stream};
    memcpy(running.launch.grid, self->grid.grid, sizeof running.launch.grid);
    memcpy(running.launch.block, self->grid.block, sizeof running.launch.block);
    operation->function->entry(&running.launch, self->params);
    sim_lock();
    for (unsigned i = 0; i < running.count; i++) sim_view_give_back_locked(&running.views[i]);
    sim_unlock();
}

static void drop_kernel(struct sim_operation* operation) {
    free(operation);
}

static size_t params_size(const struct sim_function* function) {
    size_t offset = 0, size = 0;
    if (!function->params[0]) return 0;
    sim_function_param(function, function->params[0] - 1, &offset, &size);
    return offset + size;
}

struct sim_operation* sim_kernel_operation(struct sim_function* function, const struct sim_grid* grid, void** params,
                                           const void* packed) {
    struct kernel* made = calloc(1, sizeof *made + params_size(function));
    if (!made) return NULL;
    made->operation.run = run_kernel;
    made->operation.drop = drop_kernel;
    made->operation.function = function;
    made->grid = *grid;
    for (size_t i = 0; i < function->params[0]; i++) {
        size_t offset = 0, size = 0;
        sim_function_param(function, i, &offset, &size);
        made->params[i] = made->bytes + offset;
        memcpy(made->params[i], packed ? (const char*)packed + offset : params[i], size);
    }
    return &made->operation;
}
