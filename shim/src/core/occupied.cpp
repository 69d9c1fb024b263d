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

// nullptr: none of the `count` rows says that the device is occupied.
const wire::OccupiedRecord* row_of(const wire::OccupiedRecord* rows, int count, const uint8_t uuid[16]) {
    for (int i = 0; rows != nullptr && i < count; i++)
        if (is_occupied(rows[i]) && memcmp(rows[i].uuid, uuid, sizeof rows[i].uuid) == 0) return &rows[i];
    return nullptr;
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
    rows_ = rows;
}

void Occupied::lose(uint32_t patience_ms) {
    Guard guard(lock_);
    uint64_t now = now_ms();
    if (now >= free_at_ms_) left_count_ = 0;
    for (int i = 0; rows_ != nullptr && i < wire::kOccupiedDevices; i++) {
        if (!is_occupied(rows_[i])) continue;
        free_at_ms_ = now + patience_ms;
        bool known = row_of(left_, left_count_, rows_[i].uuid) != nullptr;
        if (!known && left_count_ < wire::kOccupiedDevices) left_[left_count_++] = rows_[i];
    }
    drop();
}

bool Occupied::find(const uint8_t uuid[16], wire::OccupiedRecord* found) {
    Guard guard(lock_);
    const wire::OccupiedRecord* row = row_of(rows_, wire::kOccupiedDevices, uuid);
    if (row != nullptr) *found = *row;
    return row != nullptr;
}

uint32_t Occupied::orphaned_ms(const uint8_t uuid[16]) {
    Guard guard(lock_);
    uint64_t now = now_ms();
    bool over = now >= free_at_ms_ || row_of(left_, left_count_, uuid) == nullptr;
    return over ? 0 : static_cast<uint32_t>(free_at_ms_ - now);
}

void Occupied::forget() {
    Guard guard(lock_);
    drop();
    free_at_ms_ = 0;
}

void Occupied::reset_after_fork() {
    lock_.reset_after_fork();
    forget();
}

}  // namespace gcr
