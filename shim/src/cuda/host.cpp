// SPDX-License-Identifier: Apache-2.0
#include "cuda/host.h"

#include "hooks/cuda_calls.h"
#include "hooks/real.h"

namespace gcr {
namespace cuda {
namespace {

struct Pinned : TreeNode<Pinned> {
    uint64_t bytes;
    CUcontext context;
};

Lock lock;
Tree<Pinned> ranges;
std::atomic<uint64_t> total{0};

void add(const void* address, uint64_t bytes) {
    Pinned* range = make<Pinned>();
    if (range == nullptr) return;
    range->key = reinterpret_cast<uint64_t>(address);
    range->bytes = bytes;
    real::cuCtxGetCurrent(&range->context);
    Guard guard(lock);
    if (ranges.insert(range))
        total += bytes;
    else
        free(range);
}

Pinned* take(const void* address) {
    Guard guard(lock);
    Pinned* range = ranges.find(reinterpret_cast<uint64_t>(address));
    if (range == nullptr) return nullptr;
    ranges.erase(range);
    total -= range->bytes;
    return range;
}

void put_back(Pinned* range) {
    Guard guard(lock);
    if (ranges.insert(range))
        total += range->bytes;
    else
        free(range);
}

// Forgotten before the driver lets go: the address may be pinned anew at once.
template <typename Free>
CUresult unpin(void* address, Free call) {
    Pinned* range = take(address);
    CUresult result = call();
    if (result != CUDA_SUCCESS && range != nullptr)
        put_back(range);
    else
        free(range);
    return result;
}

}  // namespace

uint64_t pinned_bytes() {
    return total.load();
}

void forget_pinned_of(CUcontext context) {
    Guard guard(lock);
    for (Pinned* range = ranges.first(); range != nullptr;) {
        Pinned* next = ranges.after(range);
        if (range->context == context) {
            ranges.erase(range);
            total -= range->bytes;
            free(range);
        }
        range = next;
    }
}

void forget_pinned_after_fork() {
    lock.reset_after_fork();
    ranges.forget_all();
    total.store(0);
}

Lock& pinned_lock() {
    return lock;
}

CUresult on_cuMemHostAlloc(void** pp, size_t bytesize, unsigned int Flags) {
    CUresult result = real::cuMemHostAlloc(pp, bytesize, Flags);
    if (result == CUDA_SUCCESS) add(*pp, bytesize);
    return result;
}

CUresult on_cuMemAllocHost_v2(void** pp, size_t bytesize) {
    CUresult result = real::cuMemAllocHost_v2(pp, bytesize);
    if (result == CUDA_SUCCESS) add(*pp, bytesize);
    return result;
}

CUresult on_cuMemHostRegister_v2(void* p, size_t bytesize, unsigned int Flags) {
    CUresult result = real::cuMemHostRegister_v2(p, bytesize, Flags);
    if (result == CUDA_SUCCESS) add(p, bytesize);
    return result;
}

CUresult on_cuMemFreeHost(void* p) {
    return unpin(p, [&] { return real::cuMemFreeHost(p); });
}

CUresult on_cuMemHostUnregister(void* p) {
    return unpin(p, [&] { return real::cuMemHostUnregister(p); });
}

}  // namespace cuda
}  // namespace gcr
