// SPDX-License-Identifier: Apache-2.0
//
// Lending: memory of this process, for another one that was given its blob: a vendor's legacy interprocess handle, or what
// is in a ticket (core/ticket.h).
//
// Blob     names an allocation or physical memory of a process, and proves that its bearer was given it: a secret of 128
//          bits. A program passes it on as it likes.
// Lender   a thread of the process that made the blob, from its first blob on, listening at an abstract socket. Who comes
//          is of the same user, or root. It answers in flight: not while the gate is closed. No daemon is needed.
// Loan     a process that was lent something says so once it has let go; of one that has died the kernel does.
// Fork     a child lends nothing; what its parent lent, the parent goes on lending.
#ifndef GCR_CORE_LENDING_H
#define GCR_CORE_LENDING_H

#include <stdint.h>
#include <string.h>

#include <type_traits>

namespace gcr {

struct Blob {
    uint64_t magic;
    uint64_t process;  // Identity of the one that made it
    uint64_t secret[2];
    uint64_t address;  // of an allocation; 0: physical memory is named
    uint64_t id;  // of the device::Allocation, or of the device::Handle
    uint32_t vendor;  // wire::Vendor
    uint32_t reserved;
};

// What a descriptor that was lent is.
struct Lent {
    uint64_t handle;  // its id there: the same for allocations that share physical memory
    uint64_t handle_size;
    uint64_t offset;  // of the allocation in it
    uint64_t size;  // of the allocation, as it was asked for
    uint8_t uuid[16];
};

// The process that is lent something, as the lender knows it.
struct Borrower {
    uint64_t process;
    int32_t pid;  // as the lender sees it; 0: not to be seen
    uint64_t stack;  // of its program, see core/life.h
};

// Makes this process a lender and fills in all that does not depend on the memory. False: no thread or socket.
bool begin_blob(Blob* blob, uint32_t vendor);
bool is_blob(const Blob& blob, uint32_t vendor);  // a lender's, of this process or another
bool is_own(const Blob& blob);
inline Blob blob_of(const Blob& blob, uint64_t id) {  // of physical memory, by the same maker
    Blob named = blob;
    named.address = 0;
    named.id = id;
    return named;
}

// Asks the lender; by a thread of the program, no lock held. False: it is gone, or no longer has the memory.
bool borrow(const Blob& blob, Lent* lent, int* descriptor);

// Tells the lender that what it lent once by this blob is let go; waits for nothing. By a thread of the program, no lock
// held. A lender that does not hear it counts the loan until this process has ended.
void return_loan(const Blob& blob);

void reset_lending_after_fork();  // in the child

// A vendor's legacy handle is 64 bytes that only the vendor looks into.
template <typename Native>
Blob blob_in(const Native& handle) {
    static_assert(sizeof(Blob) <= sizeof handle && std::is_trivially_copyable<Native>::value, "copied as bytes");
    Blob blob;
    memcpy(&blob, &handle, sizeof blob);
    return blob;
}
template <typename Native>
void put_blob(const Blob& blob, Native* handle) {
    static_assert(sizeof(Blob) <= sizeof *handle && std::is_trivially_copyable<Native>::value, "copied as bytes");
    memset(handle, 0, sizeof *handle);
    memcpy(handle, &blob, sizeof blob);
}

}  // namespace gcr

#endif  // GCR_CORE_LENDING_H
