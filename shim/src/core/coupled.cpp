// SPDX-License-Identifier: Apache-2.0
#include "core/coupled.h"

#include <string.h>

#include "core/gate.h"

namespace gcr {
namespace coupled {
namespace {

const char* const kNames[] = {"ncclDevKernel", "ncclSymk", "cross_device_reduce", "nvshmem", "multimem"};

// The hash is of the whole name; the name is cut where it is longer.
struct Kernel {
    uint64_t hash;
    char name[sizeof(wire::IncompleteRecord::kernel)];
};

struct Function {
    std::atomic<uint64_t> handle{0};
    std::atomic<const Kernel*> kernel{nullptr};
};

constexpr uint32_t kUnmade = wire::kSeveralThreads - 1;

struct Launches {
    std::atomic<uint64_t> signature{0};
    std::atomic<uint64_t> stream{0};
    std::atomic<const Kernel*> kernel{nullptr};
    std::atomic<uint32_t> count{0};
    std::atomic<uint32_t> recent{0};  // 1: since its stream was last seen idle
    std::atomic<uint32_t> maker{kUnmade};
};

constexpr uint32_t kKernels = 256;
constexpr uint32_t kFunctions = 1024;  // powers of two
constexpr uint32_t kSignatures = 1024;
constexpr uint32_t kStreams = 64;
constexpr uint64_t kChanging = ~uint64_t{0};  // the handle of an entry that is given to another

Lock learning;
Kernel kernels[kKernels];
uint32_t kernel_count = 0;
std::atomic<bool> kernels_known{false};
Function functions[kFunctions];
Launches launches[kSignatures];
std::atomic<uint64_t> streams[kStreams];  // a handle + 1, by first use

uint64_t mixed(uint64_t value) {
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
    return value ^ (value >> 31);
}

uint64_t hash_of(const char* text) {
    uint64_t hash = 0xcbf29ce484222325u;
    for (; *text != '\0'; text++) hash = (hash ^ static_cast<unsigned char>(*text)) * 0x100000001b3u;
    return hash;
}

// The entry of a key, or a free one that it may have; null where the table is full.
template <typename Entry, typename Key>
Entry* place_of(Entry* table, uint32_t size, uint64_t value, Key key) {
    for (uint32_t i = 0; i < size; i++) {
        Entry* entry = &table[(mixed(value) + i) & (size - 1)];
        uint64_t there = key(entry)->load(std::memory_order_acquire);
        if (there == value || there == 0) return entry;
    }
    return nullptr;
}

const Kernel* kernel_of(uint64_t function) {
    Function* found = place_of(functions, kFunctions, function, [](Function* each) { return &each->handle; });
    if (found == nullptr || found->handle.load(std::memory_order_acquire) != function) return nullptr;
    const Kernel* kernel = found->kernel.load(std::memory_order_acquire);
    return found->handle.load(std::memory_order_acquire) == function ? kernel : nullptr;  // it may be another's by now
}

// The handle's own entry, or one that a handle without a kernel has left, or a free one; null where the table is full.
Function* place_for(uint64_t handle) {
    Function* left = nullptr;
    for (uint32_t i = 0; i < kFunctions; i++) {
        Function* entry = &functions[(mixed(handle) + i) & (kFunctions - 1)];
        uint64_t there = entry->handle.load(std::memory_order_relaxed);
        if (there == handle) return entry;
        if (there == 0) return left != nullptr ? left : entry;
        if (left == nullptr && entry->kernel.load(std::memory_order_relaxed) == nullptr) left = entry;
    }
    return left;
}

// With the lock. A handle may come again for another kernel, once its module was unloaded or its graph destroyed.
void enter(uint64_t function, const Kernel* kernel) {
    Function* place = place_for(function);
    if (place == nullptr) return;
    uint64_t there = place->handle.load(std::memory_order_relaxed);
    if (there != function && there != 0) place->handle.store(kChanging, std::memory_order_release);
    place->kernel.store(kernel, std::memory_order_release);  // before the handle: who finds that finds this
    place->handle.store(function, std::memory_order_release);
}

const Kernel* make_kernel(uint64_t hash, const char* name) {
    for (uint32_t i = 0; i < kernel_count; i++)
        if (kernels[i].hash == hash) return &kernels[i];
    if (kernel_count == kKernels) return nullptr;
    Kernel* made = &kernels[kernel_count++];
    made->hash = hash;
    memcpy(made->name, name, strnlen(name, sizeof made->name));
    kernels_known.store(true, std::memory_order_relaxed);
    return made;
}

void enter_coupled(uint64_t function, uint64_t hash, const char* name) {
    Guard guard(learning);
    const Kernel* kernel = make_kernel(hash, name);
    if (kernel == nullptr) return;
    enter(function, kernel);
    watch_launches();
}

void enter_local(uint64_t function) {
    if (kernel_of(function) == nullptr) return;
    Guard guard(learning);
    enter(function, nullptr);
}

// Those after the last one are one.
uint64_t number_of(uint64_t stream) {
    uint64_t mark = stream + 1;
    for (uint64_t i = 0; i < kStreams; i++) {
        uint64_t there = streams[i].load(std::memory_order_relaxed);
        if (there == mark || (there == 0 && (streams[i].compare_exchange_strong(there, mark) || there == mark)))
            return i;
    }
    return kStreams;
}

Launches* entry_of(uint64_t signature) {
    return place_of(launches, kSignatures, signature, [](Launches* each) { return &each->signature; });
}

uint64_t signed_as(const Kernel* kernel, uint64_t stream) {
    uint64_t signature = mixed(kernel->hash + number_of(stream));
    return signature != 0 ? signature : 1;
}

// Null: no call of the signature was made.
const Launches* known_entry_of(uint64_t signature) {
    Launches* entry = signature != 0 ? entry_of(signature) : nullptr;
    return entry != nullptr && entry->signature.load(std::memory_order_acquire) == signature ? entry : nullptr;
}

// Another thread may take a free entry first.
Launches* claim(uint64_t signature) {
    while (true) {
        Launches* entry = entry_of(signature);
        if (entry == nullptr) return nullptr;
        uint64_t there = entry->signature.load(std::memory_order_relaxed);
        if (there == signature) return entry;
        if (there == 0 && (entry->signature.compare_exchange_strong(there, signature) || there == signature))
            return entry;
    }
}

}  // namespace

bool is_coupled_name(const char* name) {
    for (const char* part : kNames)
        if (strstr(name, part) != nullptr) return true;
    return false;
}

void learn(uint64_t function, const char* name) {
    if (name == nullptr || !is_coupled_name(name)) return enter_local(function);
    enter_coupled(function, hash_of(name), name);
}

void learn_same(uint64_t function, uint64_t kernel) {
    const Kernel* known = kernel_of(kernel);
    if (kernel_of(function) == known) return;  // a runtime may ask at every launch
    Guard guard(learning);
    enter(function, known);
}

void Content::add(uint64_t function, const char* driver_name) {
    const Kernel* known = kernel_of(function);
    if (known == nullptr && (driver_name == nullptr || !is_coupled_name(driver_name))) return;
    hash += mixed(known != nullptr ? known->hash : hash_of(driver_name));
    if (name == nullptr) name = known != nullptr ? known->name : driver_name;
}

bool any() {
    return kernels_known.load(std::memory_order_relaxed);
}

void learn_graph(uint64_t graph, const Content& content) {
    if (content.name == nullptr) return enter_local(graph);
    enter_coupled(graph, mixed(content.hash), content.name);
}

uint64_t signature_of(const Call& call) {
    const Kernel* kernel = call.function != 0 ? kernel_of(call.function) : nullptr;
    return kernel != nullptr ? signed_as(kernel, call.stream) : 0;
}

void note(const Call& call, uint32_t thread) {
    const Kernel* kernel = call.function != 0 ? kernel_of(call.function) : nullptr;
    if (kernel == nullptr) return;
    Launches* entry = claim(signed_as(kernel, call.stream));
    if (entry == nullptr) return;
    entry->stream.store(call.stream, std::memory_order_relaxed);
    entry->kernel.store(kernel, std::memory_order_release);
    uint32_t maker = entry->maker.load(std::memory_order_relaxed);
    if (maker == kUnmade) entry->maker.compare_exchange_strong(maker, thread, std::memory_order_relaxed);
    if (maker != thread && maker != kUnmade) entry->maker.store(wire::kSeveralThreads, std::memory_order_relaxed);
    entry->count.fetch_add(1, std::memory_order_relaxed);
    entry->recent.store(1, std::memory_order_release);
}

uint32_t launched(uint64_t signature) {
    const Launches* entry = known_entry_of(signature);
    return entry != nullptr ? entry->count.load(std::memory_order_relaxed) : 0;
}

uint32_t maker_of(uint64_t signature) {
    const Launches* entry = known_entry_of(signature);
    uint32_t maker = entry != nullptr ? entry->maker.load(std::memory_order_relaxed) : kUnmade;
    return maker != kUnmade ? maker : wire::kSeveralThreads;
}

uint32_t list_made(wire::MadeRecord* found, uint32_t limit) {
    uint32_t count = 0;
    for (Launches& entry : launches) {
        uint64_t signature = entry.signature.load(std::memory_order_acquire);
        if (count == limit || signature == 0) continue;
        found[count++] = {signature, launched(signature), maker_of(signature)};
    }
    return count;
}

uint32_t list(wire::IncompleteRecord* found, uint32_t limit, bool (*idle)(uint64_t stream), bool forget) {
    uint32_t count = 0;
    for (Launches& entry : launches) {
        if (count == limit || entry.recent.load(std::memory_order_acquire) == 0) continue;
        uint64_t stream = entry.stream.load(std::memory_order_relaxed);
        if (idle(stream)) {
            if (forget) entry.recent.store(0, std::memory_order_relaxed);
            continue;
        }
        wire::IncompleteRecord& record = found[count++] = {};
        record.signature = entry.signature.load(std::memory_order_relaxed);
        record.stream = stream;
        record.launched = entry.count.load(std::memory_order_relaxed);
        memcpy(record.kernel, entry.kernel.load(std::memory_order_acquire)->name, sizeof record.kernel);
    }
    return count;
}

Lock& lock() {
    return learning;
}

// The child has no device state: its own kernels come when it looks them up.
void reset_after_fork() {
    learning.reset_after_fork();
    for (Function& each : functions) {
        each.handle.store(0, std::memory_order_relaxed);
        each.kernel.store(nullptr, std::memory_order_relaxed);
    }
    for (Launches& each : launches) {
        each.signature.store(0, std::memory_order_relaxed);
        each.count.store(0, std::memory_order_relaxed);
        each.recent.store(0, std::memory_order_relaxed);
        each.maker.store(kUnmade, std::memory_order_relaxed);
    }
    for (std::atomic<uint64_t>& each : streams) each.store(0, std::memory_order_relaxed);
}

}  // namespace coupled
}  // namespace gcr
