// SPDX-License-Identifier: Apache-2.0
#include "front.h"

#include <stddef.h>

static const hipError_t results[SIM_RESULT_COUNT] = {
    [SIM_OK] = hipSuccess,
    [SIM_INVALID_VALUE] = hipErrorInvalidValue,
    [SIM_OUT_OF_MEMORY] = hipErrorOutOfMemory,
    [SIM_NOT_INITIALIZED] = hipErrorNotInitialized,
    [SIM_DEINITIALIZED] = hipErrorDeinitialized,
    [SIM_NO_DEVICE] = hipErrorNoDevice,
    [SIM_INVALID_DEVICE] = hipErrorInvalidDevice,
    [SIM_INVALID_IMAGE] = hipErrorInvalidImage,
    [SIM_INVALID_CONTEXT] = hipErrorInvalidContext,
    [SIM_ALREADY_MAPPED] = hipErrorInvalidValue,
    [SIM_INVALID_HANDLE] = hipErrorInvalidHandle,
    [SIM_ILLEGAL_STATE] = hipErrorIllegalState,
    [SIM_NOT_FOUND] = hipErrorNotFound,
    [SIM_NOT_READY] = hipErrorNotReady,
    [SIM_ILLEGAL_ADDRESS] = hipErrorIllegalAddress,
    [SIM_PEER_ALREADY_ENABLED] = hipErrorPeerAccessAlreadyEnabled,
    [SIM_PEER_NOT_ENABLED] = hipErrorPeerAccessNotEnabled,
    [SIM_PEER_UNSUPPORTED] = hipErrorPeerAccessUnsupported,
    [SIM_CONTEXT_DESTROYED] = hipErrorContextIsDestroyed,
    [SIM_HOST_ALREADY_REGISTERED] = hipErrorHostMemoryAlreadyRegistered,
    [SIM_HOST_NOT_REGISTERED] = hipErrorHostMemoryNotRegistered,
    [SIM_NOT_SUPPORTED] = hipErrorNotSupported,
    [SIM_NOT_PERMITTED] = hipErrorNotSupported,
    [SIM_OPERATING_SYSTEM] = hipErrorOperatingSystem,
    [SIM_FILE_NOT_FOUND] = hipErrorFileNotFound,
    [SIM_CAPTURE_UNSUPPORTED] = hipErrorStreamCaptureUnsupported,
    [SIM_CAPTURE_INVALIDATED] = hipErrorStreamCaptureInvalidated,
    [SIM_CAPTURE_MERGE] = hipErrorStreamCaptureMerge,
    [SIM_CAPTURE_UNMATCHED] = hipErrorStreamCaptureUnmatched,
    [SIM_CAPTURE_UNJOINED] = hipErrorStreamCaptureUnjoined,
    [SIM_CAPTURE_ISOLATION] = hipErrorStreamCaptureIsolation,
    [SIM_CAPTURE_IMPLICIT] = hipErrorStreamCaptureImplicit,
    [SIM_CAPTURED_EVENT] = hipErrorCapturedEvent,
    [SIM_CAPTURE_WRONG_THREAD] = hipErrorStreamCaptureWrongThread,
};

hipError_t front_result(sim_result result) {
    if (result >= SIM_VENDOR_BASE) return (hipError_t)(result - SIM_VENDOR_BASE);
    return result < SIM_RESULT_COUNT ? results[result] : hipErrorUnknown;
}

struct error {
    hipError_t number;
    const char* name;
    const char* text;
};

// What is not listed is called unknown, as by the real runtime.
static const struct error* describe(hipError_t number) {
    static const struct error errors[] = {
#define ERROR(number, name, text) {number, #name, text},
#include "errors.def"
#undef ERROR
    };
    size_t i = 0;
    while (errors[i].number != number && errors[i].number != hipErrorUnknown) i++;  // it is the last
    return &errors[i];
}

SIM_API const char* hipGetErrorName(hipError_t error) {
    return describe(error)->name;
}

SIM_API const char* hipGetErrorString(hipError_t error) {
    return describe(error)->text;
}

SIM_API hipError_t hipDrvGetErrorName(hipError_t error, const char** name) {
    if (!name) return hipErrorInvalidValue;
    *name = describe(error)->name;
    return describe(error)->number == error ? hipSuccess : hipErrorInvalidValue;
}

SIM_API hipError_t hipDrvGetErrorString(hipError_t error, const char** text) {
    if (!text) return hipErrorInvalidValue;
    *text = describe(error)->text;
    return describe(error)->number == error ? hipSuccess : hipErrorInvalidValue;
}
