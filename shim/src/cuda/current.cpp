// SPDX-License-Identifier: Apache-2.0
//
// Calls of a communication library's watchdog: it reads and sets its thread's current context and capture mode, and destroys
// events. The watchdog ends a program if the driver does not answer in time, so the shim answers while the job is suspended.
#include "core/array.h"
#include "cuda/contexts.h"
#include "cuda/driver.h"
#include "hooks/cuda_calls.h"

namespace gcr {
namespace cuda {
namespace {

// By the calling thread alone: what the driver said last, until a call may have changed it.
struct Current {
    bool context_known;
    CUcontext context;
    bool device_known;
    CUresult device_result;
    CUdevice device;
};
__thread Current current __attribute__((tls_model("initial-exec")));

// By the calling thread alone: its capture mode as it was told, and as the driver has it.
struct CaptureMode {
    CUstreamCaptureMode told;
    CUstreamCaptureMode drivers;
};
__thread CaptureMode capture_mode __attribute__((tls_model("initial-exec"))) = {
    CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_GLOBAL};  // a thread's first

__thread bool owes_context __attribute__((tls_model("initial-exec"))) = false;

// By device: the state of its primary context, kKnown | its flags | kActive. 0: to be asked.
constexpr uint64_t kKnown = uint64_t{1} << 63, kActive = uint64_t{1} << 62;
constexpr CUdevice kDevices = 64;
std::atomic<uint64_t> primaries[kDevices];

Lock discarding;
Array<CUevent> discarded;  // under it

// Makes the driver calls that the shim alone answered while the control state was frozen.
void make_up() {
    if (owes_context && real::cuCtxSetCurrent(current.context) != CUDA_SUCCESS) current = {};
    owes_context = false;
    CUstreamCaptureMode mode = capture_mode.told;
    if (mode != capture_mode.drivers && real::cuThreadExchangeStreamCaptureMode(&mode) == CUDA_SUCCESS)
        capture_mode.drivers = capture_mode.told;
}

void learn_context(CUcontext context) {
    if (current.context_known && current.context == context) return;
    current = {true, context, false, CUDA_SUCCESS, 0};
}

CUresult device_of(CUcontext context, CUdevice* device) {
    if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    Guard guard(state.lock);
    for (const Context* known : state.contexts) {
        if (known->handle != context) continue;
        *device = known->device;
        return CUDA_SUCCESS;
    }
    return kUnanswered;
}

CUresult told_device(CUdevice* device) {
    if (device == nullptr) return kUnanswered;
    if (current.device_known) {
        if (current.device_result == CUDA_SUCCESS) *device = current.device;
        return current.device_result;
    }
    return current.context_known ? device_of(current.context, device) : kUnanswered;
}

CUresult learned_device(CUresult result, const CUdevice* device) {
    current.device_known = device != nullptr && (result == CUDA_SUCCESS || result == CUDA_ERROR_INVALID_CONTEXT);
    current.device_result = result;
    if (current.device_known && result == CUDA_SUCCESS) current.device = *device;
    return result;
}

template <typename Change>
CUresult changed(Change change) {
    current = {};
    return change();
}

CUresult put_off(CUevent event) {
    Guard guard(discarding);
    return event != nullptr && discarded.push(event) ? CUDA_SUCCESS : kUnanswered;
}

bool next_discarded(CUevent* event) {
    Guard guard(discarding);
    if (discarded.empty()) return false;
    *event = discarded.pop();
    return true;
}

}  // namespace

void forget_current() {
    current = {};
}

void forget_primary(CUdevice device) {
    if (device >= 0 && device < kDevices) primaries[device].store(0, std::memory_order_relaxed);
}

bool known_device(CUdevice* device) {
    return told_device(device) == CUDA_SUCCESS;
}

void reset_discarded_after_fork() {
    discarding.reset_after_fork();
    discarded.clear();
}

void destroy_discarded() {
    CUevent event = nullptr;
    while (next_discarded(&event)) real::cuEventDestroy_v2(event);
}

CUresult on_cuCtxGetCurrent(CUcontext* pctx) {
    CUresult result = real::cuCtxGetCurrent(pctx);
    if (result == CUDA_SUCCESS && pctx != nullptr) learn_context(*pctx);
    return result;
}

CUresult frozen_cuCtxGetCurrent(CUcontext* pctx) {
    if (pctx == nullptr || !current.context_known) return kUnanswered;
    *pctx = current.context;
    return CUDA_SUCCESS;
}

CUresult on_cuCtxSetCurrent(CUcontext ctx) {
    CUresult result = real::cuCtxSetCurrent(ctx);
    if (result == CUDA_SUCCESS)
        learn_context(ctx);
    else
        current = {};
    return result;
}

// Another context is made current for good by the thread's next call.
CUresult frozen_cuCtxSetCurrent(CUcontext ctx) {
    CUdevice device = 0;
    if (current.context_known && current.context == ctx) return CUDA_SUCCESS;
    if (ctx != nullptr && device_of(ctx, &device) != CUDA_SUCCESS) return kUnanswered;
    learn_context(ctx);
    owes_context = true;
    owe(make_up);
    return CUDA_SUCCESS;
}

CUresult on_cuCtxGetDevice(CUdevice* device) {
    return learned_device(real::cuCtxGetDevice(device), device);
}

CUresult frozen_cuCtxGetDevice(CUdevice* device) {
    return told_device(device);
}

CUresult on_cuCtxGetDevice_v2(CUdevice* device, CUcontext ctx) {
    CUresult result = real::cuCtxGetDevice_v2(device, ctx);
    return ctx == nullptr ? learned_device(result, device) : result;
}

CUresult frozen_cuCtxGetDevice_v2(CUdevice* device, CUcontext ctx) {
    if (ctx == nullptr || device == nullptr) return told_device(device);
    return device_of(ctx, device);
}

CUresult on_cuCtxPushCurrent(CUcontext ctx) {
    return changed([&] { return real::cuCtxPushCurrent(ctx); });
}

CUresult on_cuCtxPushCurrent_v2(CUcontext ctx) {
    return changed([&] { return real::cuCtxPushCurrent_v2(ctx); });
}

CUresult on_cuCtxPopCurrent(CUcontext* pctx) {
    return changed([&] { return real::cuCtxPopCurrent(pctx); });
}

CUresult on_cuCtxPopCurrent_v2(CUcontext* pctx) {
    return changed([&] { return real::cuCtxPopCurrent_v2(pctx); });
}

CUresult frozen_cuCtxPushCurrent(CUcontext) {
    return kUnanswered;
}

CUresult frozen_cuCtxPushCurrent_v2(CUcontext) {
    return kUnanswered;
}

CUresult frozen_cuCtxPopCurrent(CUcontext*) {
    return kUnanswered;
}

CUresult frozen_cuCtxPopCurrent_v2(CUcontext*) {
    return kUnanswered;
}

CUresult on_cuDevicePrimaryCtxGetState(CUdevice dev, unsigned int* flags, int* active) {
    CUresult result = real::cuDevicePrimaryCtxGetState(dev, flags, active);
    bool told = result == CUDA_SUCCESS && flags != nullptr && active != nullptr;
    if (told && dev >= 0 && dev < kDevices)
        primaries[dev].store(kKnown | (*active != 0 ? kActive : 0) | *flags, std::memory_order_relaxed);
    return result;
}

CUresult frozen_cuDevicePrimaryCtxGetState(CUdevice dev, unsigned int* flags, int* active) {
    uint64_t known = dev >= 0 && dev < kDevices ? primaries[dev].load(std::memory_order_relaxed) : 0;
    if (known == 0 || flags == nullptr || active == nullptr) return kUnanswered;
    *flags = static_cast<unsigned int>(known);
    *active = (known & kActive) != 0 ? 1 : 0;
    return CUDA_SUCCESS;
}

CUresult on_cuDevicePrimaryCtxSetFlags(CUdevice dev, unsigned int flags) {
    forget_primary(dev);
    return real::cuDevicePrimaryCtxSetFlags(dev, flags);
}

CUresult on_cuDevicePrimaryCtxSetFlags_v2(CUdevice dev, unsigned int flags) {
    forget_primary(dev);
    return real::cuDevicePrimaryCtxSetFlags_v2(dev, flags);
}

CUresult frozen_cuDevicePrimaryCtxSetFlags(CUdevice, unsigned int) {
    return kUnanswered;
}

CUresult frozen_cuDevicePrimaryCtxSetFlags_v2(CUdevice, unsigned int) {
    return kUnanswered;
}

CUresult on_cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
    CUstreamCaptureMode wanted = mode != nullptr ? *mode : capture_mode.told;
    CUresult result = real::cuThreadExchangeStreamCaptureMode(mode);
    if (result == CUDA_SUCCESS) capture_mode = {wanted, wanted};
    return result;
}

CUresult frozen_cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
    if (mode == nullptr || *mode < CU_STREAM_CAPTURE_MODE_GLOBAL || *mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return kUnanswered;
    CUstreamCaptureMode before = capture_mode.told;
    capture_mode.told = *mode;
    *mode = before;
    owe(make_up);
    return CUDA_SUCCESS;
}

CUresult on_cuEventDestroy(CUevent hEvent) {
    destroy_discarded();
    return real::cuEventDestroy(hEvent);
}

CUresult on_cuEventDestroy_v2(CUevent hEvent) {
    destroy_discarded();
    return real::cuEventDestroy_v2(hEvent);
}

CUresult put_off_cuEventDestroy(CUevent hEvent) {
    return put_off(hEvent);
}

CUresult put_off_cuEventDestroy_v2(CUevent hEvent) {
    return put_off(hEvent);
}

}  // namespace cuda
}  // namespace gcr
