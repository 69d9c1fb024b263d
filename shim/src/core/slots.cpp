// SPDX-License-Identifier: Apache-2.0
#include "core/slots.h"

#include <sys/mman.h>

#include <new>

#include "core/sys.h"
#include "core/threads.h"

namespace gcr {

__thread Slot* thread_slot = nullptr;

namespace {

// A thread that owes something has its slot here, so that its next call does not pass it by.
__thread Slot* indebted_slot __attribute__((tls_model("initial-exec"))) = nullptr;
__thread void (*debt)() __attribute__((tls_model("initial-exec"))) = nullptr;

constexpr size_t kSlotsPerChunk = 64;

std::atomic<Slot*> slots{nullptr};  // newest first; append-only for the life of the process
std::atomic<uint32_t> chunks{0};  // that were mapped

Slot* take_free_slot() {
    for (Slot* slot = slots.load(std::memory_order_acquire); slot != nullptr; slot = slot->next) {
        uint32_t expected = 0;
        if (slot->taken.compare_exchange_strong(expected, 1)) return slot;
    }
    return nullptr;
}

void publish(Slot* first, Slot* last) {
    Slot* head = slots.load(std::memory_order_relaxed);
    do {
        last->next = head;
    } while (!slots.compare_exchange_weak(head, first, std::memory_order_seq_cst));
}

// mmap, not malloc: a thread may make its first call inside an allocator that calls us.
Slot* map_slots() {
    KeepErrno keep;
    void* memory =
        mmap(nullptr, kSlotsPerChunk * sizeof(Slot), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return nullptr;
    Slot* chunk = static_cast<Slot*>(memory);
    uint32_t first = chunks.fetch_add(1, std::memory_order_relaxed) * static_cast<uint32_t>(kSlotsPerChunk);
    for (size_t i = 0; i < kSlotsPerChunk; i++) {
        new (&chunk[i]) Slot;
        chunk[i].number = first + static_cast<uint32_t>(i);
        if (i > 0) chunk[i - 1].next = &chunk[i];
    }
    chunk[0].taken.store(1, std::memory_order_relaxed);
    publish(chunk, &chunk[kSlotsPerChunk - 1]);
    return chunk;
}

void leave_slot(void* value) {
    Slot* slot = static_cast<Slot*>(value);
    slot->parking.store(kNotParked, std::memory_order_relaxed);
    slot->passive.store(0, std::memory_order_release);
    slot->depth.store(0, std::memory_order_release);
    slot->aside.store(0, std::memory_order_release);
    thread_slot = indebted_slot = nullptr;
    debt = nullptr;
    slot->taken.store(0, std::memory_order_release);  // last: from here on another thread may own it
}

Slot* attach_slot() {
    Slot* slot = take_free_slot();
    if (slot == nullptr) slot = map_slots();
    if (slot == nullptr) return nullptr;
    thread_slot = slot;
    at_thread_exit(leave_slot, slot);
    return slot;
}

}  // namespace

Slot* own_slot() {
    Slot* slot = indebted_slot != nullptr ? indebted_slot : thread_slot;
    return slot != nullptr ? slot : attach_slot();
}

Slot* newest_slot() {
    return slots.load(std::memory_order_seq_cst);
}

void owe(void (*owed)()) {
    debt = owed;
    if (thread_slot == nullptr) return;
    indebted_slot = thread_slot;
    thread_slot = nullptr;
}

void pay() {
    if (debt == nullptr) return;
    void (*owed)() = debt;
    thread_slot = indebted_slot;
    indebted_slot = nullptr;
    debt = nullptr;
    owed();
}

void forget_debt() {
    if (indebted_slot != nullptr) thread_slot = indebted_slot;
    indebted_slot = nullptr;
    debt = nullptr;
}

}  // namespace gcr
