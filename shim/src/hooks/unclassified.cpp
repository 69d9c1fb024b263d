// SPDX-License-Identifier: Apache-2.0
#include "hooks/unclassified.h"

#include <string.h>

#include <atomic>

namespace gcr {
namespace hooks {
namespace {

constexpr uint32_t kKept = 32;
constexpr size_t kLength = 64;

struct Entry {
    char name[kLength];
    std::atomic<bool> written;  // release by the one writer; acquire by readers
};

Entry entries[kKept];
std::atomic<uint32_t> taken;

bool known(const char* name) {
    for (Entry& entry : entries)
        if (entry.written.load(std::memory_order_acquire) && strncmp(entry.name, name, kLength - 1) == 0) return true;
    return false;
}

}  // namespace

void note_unclassified(const char* name) {
    if (known(name)) return;  // two threads may both add it: a count too high by one, once
    uint32_t position = taken.fetch_add(1, std::memory_order_relaxed);
    if (position >= kKept) return;
    strncpy(entries[position].name, name, kLength - 1);
    entries[position].written.store(true, std::memory_order_release);
}

uint32_t unclassified_count() {
    return taken.load(std::memory_order_relaxed);
}

const char* unclassified_name(uint32_t position) {
    if (position >= kKept || !entries[position].written.load(std::memory_order_acquire)) return nullptr;
    return entries[position].name;
}

}  // namespace hooks
}  // namespace gcr
