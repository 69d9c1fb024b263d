// SPDX-License-Identifier: Apache-2.0
//
// hiprtc's calls for a test: takes any source with the hash kernel in it, and its code object is the file STANDIN_CODE.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID_INPUT = 3, COMPILATION = 6 };

struct program {
    char* source;
    int compiled;
    char log[64];
};

int hiprtcVersion(int* major, int* minor) {
    *major = 7;
    *minor = 2;
    return SUCCESS;
}

int hiprtcCreateProgram(struct program** program, const char* source, const char* name, int headers, const char** texts,
                        const char** names) {
    if (!source || headers) return INVALID_INPUT;
    *program = calloc(1, sizeof **program);
    (*program)->source = strdup(source);
    return SUCCESS;
}

int hiprtcCompileProgram(struct program* program, int count, const char** options) {
    for (int i = 0; i < count; i++)
        if (options[i][0] != '-') return INVALID_INPUT;
    const char* kernel = strstr(program->source, "extern \"C\" __global__");
    program->compiled = kernel && strstr(kernel, "gcr_hash_chunks") && !getenv("STANDIN_REFUSES");
    strcpy(program->log, program->compiled ? "" : "refused as asked");
    return program->compiled ? SUCCESS : COMPILATION;
}

int hiprtcGetProgramLogSize(struct program* program, size_t* size) {
    *size = strlen(program->log) + 1;
    return SUCCESS;
}

int hiprtcGetProgramLog(struct program* program, char* log) {
    strcpy(log, program->log);
    return SUCCESS;
}

static size_t read_code(char* code, size_t room) {
    FILE* file = fopen(getenv("STANDIN_CODE"), "rb");
    if (!file) return 0;
    fseek(file, 0, SEEK_END);
    size_t size = (size_t)ftell(file);
    rewind(file);
    if (code && fread(code, 1, room, file) != size) size = 0;
    fclose(file);
    return size;
}

int hiprtcGetCodeSize(struct program* program, size_t* size) {
    if (!program->compiled) return INVALID_INPUT;
    *size = read_code(NULL, 0);
    return SUCCESS;
}

int hiprtcGetCode(struct program* program, char* code) {
    if (!program->compiled) return INVALID_INPUT;
    return read_code(code, read_code(NULL, 0)) ? SUCCESS : INVALID_INPUT;
}

int hiprtcDestroyProgram(struct program** program) {
    if (!program || !*program) return INVALID_INPUT;
    free((*program)->source);
    free(*program);
    *program = NULL;
    return SUCCESS;
}
