// SPDX-License-Identifier: Apache-2.0
#include "core/occupied.h"

#include <string.h>
#include <sys/mman.h>

#include "core/sys.h"

namespace gcr {
namespace {

constexpr size_t kPageBytes = wire::kOccupiedDevices * sizeof(wire::OccupiedRecord);

const wire::OccupiedRecord* map_page(int page) {
    if (page < 0 || !holds_for_good(page, 0, kPageBytes)) return nullptr;
    void* place = mmap(nullptr, kPageBytes, PROT_READ, MAP_SHARED, page, 0);
    return place == MAP_FAILED ? nullptr : static_cast<const wire::OccupiedRecord*>(place);
}

bool is_occupied(const wire::OccupiedRecord& row) {
    // acquire: pairs with the daemon's order, the UUID of a row before its word
    return __atomic_load_n(&row.occupied, __ATOMIC_ACQUIRE) != 0;
}

bool any_occupied(const wire::OccupiedRecord* rows) {
    for (int i = 0; rows != nullptr && i < wire::kOccupiedDevices; i++)
        if (is_occupied(rows[i])) return true;
    return false;
}

}  // namespace

void Occupied::drop() {
    const wire::OccupiedRecord* rows = rows_;
    rows_ = nullptr;  // first: a child of a fork just now has no rows, rather than an address where nothing is
    if (rows != nullptr) munmap(const_cast<wire::OccupiedRecord*>(rows), kPageBytes);
}

void Occupied::adopt(int page) {
    const wire::OccupiedRecord* rows = map_page(page);
    Guard guard(lock_);
    drop();
    free_at_ms_ = 0;
    rows_ = rows;
}

void Occupied::lose(uint32_t patience_ms) {
    Guard guard(lock_);
    if (any_occupied(rows_)) {
        free_at_ms_ = now_ms() + patience_ms;
    } else {
        drop();
    }
}

bool Occupied::find(const uint8_t uuid[16], wire::OccupiedRecord* found) {
    Guard guard(lock_);
    if (free_at_ms_ != 0 && now_ms() >= free_at_ms_) drop();
    for (int i = 0; rows_ != nullptr && i < wire::kOccupiedDevices; i++) {
        if (!is_occupied(rows_[i]) || memcmp(rows_[i].uuid, uuid, sizeof rows_[i].uuid) != 0) continue;
        *found = rows_[i];
        return true;
    }
    return false;
}

uint32_t Occupied::orphaned_ms() {
    Guard guard(lock_);
    uint64_t now = now_ms();
    return now >= free_at_ms_ ? 0 : static_cast<uint32_t>(free_at_ms_ - now);
}

void Occupied::reset_after_fork() {
    lock_.reset_after_fork();
    drop();
    free_at_ms_ = 0;
}

}  // namespace gcr
