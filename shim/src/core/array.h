// SPDX-License-Identifier: Apache-2.0
//
// A growable array of plain data. push() says false when host memory is exhausted; nothing is lost then.
// Array has no destructor: one that lives as long as the process must not be torn down while other threads still run.
// ScratchArray is for the length of a function.
#ifndef GCR_CORE_ARRAY_H
#define GCR_CORE_ARRAY_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <type_traits>

namespace gcr {

template <typename T>
class Array {
    static_assert(std::is_trivially_copyable<T>::value, "moved by realloc");

  public:
    Array() = default;
    Array(const Array&) = delete;
    Array& operator=(const Array&) = delete;

    bool reserve(size_t wanted) {
        if (wanted <= capacity_) return true;
        size_t capacity = capacity_ < 8 ? 8 : capacity_;
        while (capacity < wanted) capacity *= 2;
        void* grown = realloc(static_cast<void*>(items_), capacity * sizeof(T));
        if (grown == nullptr) return false;
        items_ = static_cast<T*>(grown);
        capacity_ = capacity;
        return true;
    }
    bool push(const T& item) {
        if (!reserve(size_ + 1)) return false;
        items_[size_++] = item;
        return true;
    }
    void swap_out(size_t index) { items_[index] = items_[--size_]; }  // order is not kept
    T pop() { return items_[--size_]; }
    void clear() { size_ = 0; }
    void dispose() {
        free(items_);
        items_ = nullptr;
        size_ = capacity_ = 0;
    }

    size_t size() const { return size_; }
    bool empty() const { return size_ == 0; }
    T* data() { return items_; }
    const T* data() const { return items_; }
    T& operator[](size_t index) { return items_[index]; }
    const T& operator[](size_t index) const { return items_[index]; }
    T* begin() { return items_; }
    T* end() { return items_ + size_; }
    const T* begin() const { return items_; }
    const T* end() const { return items_ + size_; }

  private:
    T* items_ = nullptr;
    size_t size_ = 0;
    size_t capacity_ = 0;
};

template <typename T>
class ScratchArray : public Array<T> {
  public:
    ~ScratchArray() { this->dispose(); }
};

}  // namespace gcr

#endif  // GCR_CORE_ARRAY_H
