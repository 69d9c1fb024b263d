// SPDX-License-Identifier: Apache-2.0
#include <stddef.h>

#include "front.h"

static const int results[SIM_RESULT_COUNT] = {
    [SIM_OK] = 0,
    [SIM_INVALID_VALUE] = 1,
    [SIM_OUT_OF_MEMORY] = 2,
    [SIM_NOT_INITIALIZED] = 3,
    [SIM_DEINITIALIZED] = 4,
    [SIM_NO_DEVICE] = 100,
    [SIM_INVALID_DEVICE] = 101,
    [SIM_INVALID_IMAGE] = 200,
    [SIM_INVALID_CONTEXT] = 201,
    [SIM_ALREADY_MAPPED] = 208,
    [SIM_INVALID_HANDLE] = 400,
    [SIM_ILLEGAL_STATE] = 401,
    [SIM_NOT_FOUND] = 500,
    [SIM_NOT_READY] = 600,
    [SIM_ILLEGAL_ADDRESS] = 700,
    [SIM_PEER_ALREADY_ENABLED] = 704,
    [SIM_PEER_NOT_ENABLED] = 705,
    [SIM_PEER_UNSUPPORTED] = 217,
    [SIM_CONTEXT_DESTROYED] = 709,
    [SIM_HOST_ALREADY_REGISTERED] = 712,
    [SIM_HOST_NOT_REGISTERED] = 713,
    [SIM_NOT_SUPPORTED] = 801,
    [SIM_NOT_PERMITTED] = 800,
    [SIM_OPERATING_SYSTEM] = 304,
    [SIM_FILE_NOT_FOUND] = 301,
    [SIM_CAPTURE_UNSUPPORTED] = 900,
    [SIM_CAPTURE_INVALIDATED] = 901,
    [SIM_CAPTURE_MERGE] = 902,
    [SIM_CAPTURE_UNMATCHED] = 903,
    [SIM_CAPTURE_UNJOINED] = 904,
    [SIM_CAPTURE_ISOLATION] = 905,
    [SIM_CAPTURE_IMPLICIT] = 906,
    [SIM_CAPTURED_EVENT] = 907,
    [SIM_CAPTURE_WRONG_THREAD] = 908,
};

CUresult front_result(sim_result result) {
    if (result >= SIM_VENDOR_BASE) return (CUresult)(result - SIM_VENDOR_BASE);
    return result < SIM_RESULT_COUNT ? results[result] : 999;
}

static const struct {
    CUresult number;
    const char* name;
    const char* text;
} errors[] = {
#define ERROR(number, name, text) {number, #name, text},
#include "errors.def"
#undef ERROR
};

static CUresult describe(CUresult error, const char** out, bool name) {
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    *out = NULL;
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].number == error) *out = name ? errors[i].name : errors[i].text;
    return *out ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SIM_API CUresult cuGetErrorName(CUresult error, const char** name) {
    return describe(error, name, true);
}

SIM_API CUresult cuGetErrorString(CUresult error, const char** text) {
    return describe(error, text, false);
}
