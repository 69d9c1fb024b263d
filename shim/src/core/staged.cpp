// SPDX-License-Identifier: Apache-2.0
#include "core/staged.h"

namespace gcr {
namespace {

void close_all(const int* descriptors, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) close_descriptor(descriptors[i]);
}

}  // namespace

bool Staged::add(uint64_t transaction, uint32_t offset, uint32_t total, const int* descriptors, uint32_t count) {
    bool possible = total > 0 && total <= kMost;
    if (possible && offset == 0) drop();  // a set begins: what an earlier attempt left is void
    bool next = offset == 0 || (transaction == transaction_ && total == total_ && offset == files_.size());
    if (!possible || !next || count > total - offset || !files_.reserve(total)) {
        close_all(descriptors, count);
        return false;
    }
    transaction_ = transaction;
    total_ = total;
    for (uint32_t i = 0; i < count; i++) {
        OwnedFd file;
        file.adopt(descriptors[i]);
        files_.push(file);
    }
    return true;
}

uint32_t Staged::copy(uint32_t offset, uint32_t limit, int* descriptors) const {
    uint32_t count = 0;
    for (size_t i = offset; i < files_.size() && count < limit && files_[i].still_ours(); i++)
        descriptors[count++] = files_[i].get();
    return count;
}

void Staged::drop() {
    for (OwnedFd& file : files_) file.close();
    files_.clear();
    transaction_ = 0;
    total_ = 0;
}

}  // namespace gcr
