// SPDX-License-Identifier: Apache-2.0
//
// Devices and contexts. A device that is reset takes with it what was allocated on it; the runtime does not know that
// our memory belongs there, and could not free it once the device is closed, so it goes right before.
#include "acl/contexts.h"

#include "acl/vendor.h"
#include "core/agent.h"
#include "device/allocations.h"
#include "device/devices.h"
#include "device/peers.h"
#include "device/streams.h"
#include "hooks/acl_calls.h"

namespace gcr {
namespace acl {
namespace {

constexpr uint64_t kUnpinMs = 30000;  // longer than one of our own calls on an idle device takes

std::atomic<uint32_t> initialised{0};

// Under state.lock.
Context* find(aclrtContext handle) {
    for (Context* context : state.contexts)
        if (context->handle == handle) return context;
    return nullptr;
}

void record(aclrtContext handle, int device, bool of_the_device) {
    Guard guard(state.lock);
    if (handle == nullptr || find(handle) != nullptr) return;
    Context* context = make<Context>();
    if (context == nullptr) return;
    context->handle = handle;
    context->device = device;
    context->of_the_device = of_the_device;
    if (!state.contexts.push(context)) free(context);
}

Context* take(aclrtContext handle) {
    Guard guard(state.lock);
    for (size_t i = 0; i < state.contexts.size(); i++) {
        Context* context = state.contexts[i];
        if (context->handle != handle) continue;
        state.contexts.swap_out(i);
        return context;
    }
    return nullptr;
}

void put_back(Context* context) {
    Guard guard(state.lock);
    state.contexts.push(context);
}

Context* take_one_of(int device, bool explicit_too) {
    Guard guard(state.lock);
    for (size_t i = 0; i < state.contexts.size(); i++) {
        Context* context = state.contexts[i];
        if (context->device != device || (!explicit_too && !context->of_the_device)) continue;
        state.contexts.swap_out(i);
        return context;
    }
    return nullptr;
}

// One of our threads may be in the runtime with it: a synchronisation, a copy. Leaked rather than freed under it.
void bury(Context* context) {
    Deadline deadline(kUnpinMs);
    while (context->pins.load() > 0 && !deadline.passed()) sleep_us(200);
    device::forget_streams_of(state, key_of(context->handle));
    if (context->pins.load() == 0) free(context);
}

bool has_explicit_contexts(int device) {
    Guard guard(state.lock);
    for (const Context* context : state.contexts)
        if (context->device == device && !context->of_the_device) return true;
    return false;
}

void free_memory_of(int device) {
    Owner* owner = state.owners[device].load(std::memory_order_acquire);
    if (owner == nullptr) return;
    state.ops->synchronize(owner);
    device::forget_peers_of(state, owner);
    device::free_all_of(state, owner);
}

void forget_device(int device, bool explicit_too) {
    free_memory_of(device);
    while (Context* context = take_one_of(device, explicit_too)) bury(context);
}

bool exists(int device) {
    return device >= 0 && device < kMaxDevices;
}

uint32_t change_sets(int device, int by) {
    Guard guard(state.lock);
    if (by < 0 && state.sets[device] == 0) return 0;
    return state.sets[device] += static_cast<uint32_t>(by);
}

void peers_changed(int32_t peer, void (*change)(device::State&, Owner*, Owner*)) {
    Owner* accessor = current_owner();
    Owner* owner = accessor == nullptr ? nullptr : owner_of(peer);
    if (owner != nullptr) change(state, accessor, owner);
}

// A copy: contexts may come and go while the runtime is called.
struct Contexts {
    static constexpr uint32_t kLimit = 64;
    uint32_t count = 0;
    aclrtContext handles[kLimit];
};

Contexts all_contexts() {
    Contexts all;
    Guard guard(state.lock);
    for (const Context* context : state.contexts)
        if (all.count < Contexts::kLimit) all.handles[all.count++] = context->handle;
    return all;
}

}  // namespace

// ---- for our own calls --------------------------------------------------------------------------------------------

Context* pin_context_of(int device) {
    Context* found = nullptr;
    Guard guard(state.lock);
    for (Context* context : state.contexts)
        if (found == nullptr || (found->device != device && context->device == device)) found = context;
    if (found != nullptr) found->pins++;
    return found;
}

Context* pin_context(aclrtContext handle) {
    Guard guard(state.lock);
    Context* context = find(handle);
    if (context != nullptr) context->pins++;
    return context;
}

void unpin_context(Context* context) {
    if (context != nullptr) context->pins--;
}

CurrentContext::CurrentContext(aclrtContext context) {
    if (context == nullptr) return;
    if (real::aclrtGetCurrentContext(&before_) != ACL_SUCCESS) before_ = nullptr;
    changed_ = before_ != context && real::aclrtSetCurrentContext(context) == ACL_SUCCESS;
}

CurrentContext::~CurrentContext() {
    if (changed_ && before_ != nullptr) real::aclrtSetCurrentContext(before_);
}

int current_device() {
    int32_t device = -1;
    return real::aclrtGetDevice(&device) == ACL_SUCCESS && exists(device) ? device : -1;
}

Owner* owner_of(int device) {
    if (!exists(device)) return nullptr;
    Owner* owner = state.owners[device].load(std::memory_order_acquire);
    if (owner != nullptr) return owner;
    Owner* made = make<Owner>();
    if (made == nullptr) return nullptr;
    made->device = device;
    if (state.owners[device].compare_exchange_strong(owner, made)) return made;
    free(made);
    return owner;
}

Owner* current_owner() {
    return owner_of(current_device());
}

Failure synchronize_devices() {
    Contexts all = all_contexts();
    for (uint32_t i = 0; i < all.count; i++) {
        PinnedContext context(pin_context(all.handles[i]));
        if (context.handle() == nullptr) continue;  // destroyed meanwhile
        CurrentContext scope(context.handle());
        aclError result = real::aclrtSynchronizeDevice();
        if (result != ACL_SUCCESS) return {wire::kDriver, result, "failed", "aclrtSynchronizeDevice"};
    }
    return {};
}

// ---- the program's calls ------------------------------------------------------------------------------------------

aclError on_aclInit(const char* configPath) {
    aclError result = real::aclInit(configPath);
    if (result == ACL_SUCCESS) initialised.store(1);
    return result;
}

// Resets every device.
aclError on_aclFinalize() {
    if (initialised.exchange(0) != 0)
        for (int device = 0; device < kMaxDevices; device++) forget_device(device, true);
    return real::aclFinalize();
}

// Programs need no aclInit: this is the first call of each.
aclError on_aclrtSetDevice(int32_t deviceId) {
    aclError result = real::aclrtSetDevice(deviceId);
    if (result != ACL_SUCCESS || !exists(deviceId)) return result;
    aclrtContext context = nullptr;
    if (real::aclrtGetCurrentContext(&context) == ACL_SUCCESS) record(context, deviceId, true);
    change_sets(deviceId, 1);
    start_agent(&vendor_ops());
    return result;
}

aclError on_aclrtResetDevice(int32_t deviceId) {
    bool known = exists(deviceId);
    bool last = known && change_sets(deviceId, 0) == 1 && !has_explicit_contexts(deviceId);
    if (last) forget_device(deviceId, false);
    aclError result = real::aclrtResetDevice(deviceId);
    if (result == ACL_SUCCESS && known) change_sets(deviceId, -1);
    return result;
}

aclError on_aclrtResetDeviceForce(int32_t deviceId) {
    if (exists(deviceId) && change_sets(deviceId, 0) > 0) forget_device(deviceId, true);
    aclError result = real::aclrtResetDeviceForce(deviceId);
    if (result != ACL_SUCCESS || !exists(deviceId)) return result;
    Guard guard(state.lock);
    state.sets[deviceId] = 0;
    return result;
}

aclError on_aclrtCreateContext(aclrtContext* context, int32_t deviceId) {
    aclError result = real::aclrtCreateContext(context, deviceId);
    if (result != ACL_SUCCESS) return result;
    record(*context, deviceId, false);
    start_agent(&vendor_ops());
    return result;
}

// Out of the list first: none of our threads takes it up while the runtime destroys it.
aclError on_aclrtDestroyContext(aclrtContext context) {
    Context* known = take(context);
    if (known != nullptr) {
        Deadline deadline(kUnpinMs);
        while (known->pins.load() > 0 && !deadline.passed()) sleep_us(200);
    }
    aclError result = real::aclrtDestroyContext(context);
    if (known == nullptr) return result;
    if (result == ACL_SUCCESS)
        bury(known);
    else
        put_back(known);
    return result;
}

aclError on_aclrtDeviceEnablePeerAccess(int32_t peerDeviceId, uint32_t flags) {
    aclError result = real::aclrtDeviceEnablePeerAccess(peerDeviceId, flags);
    if (result == ACL_SUCCESS) peers_changed(peerDeviceId, device::add_peer);
    return result;
}

aclError on_aclrtDeviceDisablePeerAccess(int32_t peerDeviceId) {
    aclError result = real::aclrtDeviceDisablePeerAccess(peerDeviceId);
    if (result == ACL_SUCCESS) peers_changed(peerDeviceId, device::remove_peer);
    return result;
}

}  // namespace acl
}  // namespace gcr
