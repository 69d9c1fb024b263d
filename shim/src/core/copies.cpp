// SPDX-License-Identifier: Apache-2.0
#include "core/copies.h"

#include <string.h>
#include <sys/mman.h>

#include "core/session.h"
#include "core/sys.h"

namespace gcr {
namespace {

constexpr uint64_t kPage = 4096;

// A piece of a segment, mapped for the length of one copy.
class Window {
  public:
    Window(int segment, uint64_t offset, uint64_t size) {
        skip_ = offset % kPage;
        length_ = static_cast<size_t>(size + skip_);
        off_t from = static_cast<off_t>(offset - skip_);
        base_ = mmap(nullptr, length_, PROT_READ | PROT_WRITE, MAP_SHARED, segment, from);
    }
    ~Window() {
        if (base_ != MAP_FAILED) munmap(base_, length_);
    }
    Window(const Window&) = delete;
    Window& operator=(const Window&) = delete;
    void* get() const { return base_ == MAP_FAILED ? nullptr : static_cast<char*>(base_) + skip_; }

  private:
    void* base_;
    size_t length_;
    uint64_t skip_;
};

Failure copy_piece(Direction direction, const wire::CopyRecord& piece, int segment) {
    if (piece.size == 0 || !holds_for_good(segment, piece.segment_offset, piece.size))
        return {wire::kBadFrame, 0, "a segment is not sealed, or too small"};
    Window window(segment, piece.segment_offset, piece.size);
    if (window.get() == nullptr) return {wire::kNoMemory, 0, "a segment could not be mapped"};
    return session.vendors.copy(direction, piece.id, piece.handle_offset, window.get(), piece.size);
}

}  // namespace

Failure copy_pieces(Direction direction, const wire::CopyRequest& wanted, const uint8_t* records, const int* segments,
                    uint32_t segment_count, Tally* done) {
    Deadline budget(wanted.budget_ms);
    for (uint32_t i = 0; i < wanted.count && (i == 0 || !budget.passed()); i++) {
        wire::CopyRecord piece;
        memcpy(&piece, records + static_cast<size_t>(i) * wanted.record_size, sizeof piece);
        if (piece.segment >= segment_count) return {wire::kBadFrame, 0, "no such segment in this frame"};
        Failure failure = copy_piece(direction, piece, segments[piece.segment]);
        if (failure) return failure;
        done->handles++;
        done->bytes += piece.size;
    }
    return {};
}

}  // namespace gcr
