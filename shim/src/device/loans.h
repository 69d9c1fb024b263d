// SPDX-License-Identifier: Apache-2.0
//
// Loans: physical memory of this process that others hold. It lives for as long as they do, as the driver's does: what the
// program has freed stays in the tables until the last of them has returned it or has died.
#ifndef GCR_DEVICE_LOANS_H
#define GCR_DEVICE_LOANS_H

#include "core/lending.h"
#include "device/held.h"
#include "device/state.h"

namespace gcr {
namespace device {

// A ticket for memory of the program's, in place of the driver's descriptor; the caller owns it. False: it gets the
// driver's own (core/ticket.h), or there is none of this memory. In flight, no lock held.
bool give_ticket(State& state, const Held& held, int* ticket);

// Which borrowers have ended, each asked of the kernel once.
class Census {
  public:
    bool is_gone(const Borrower& borrower);

  private:
    static constexpr size_t kMost = 64;  // any further one is asked about for each of its loans
    size_t known_ = 0;
    uint64_t processes_[kMost];
    bool gone_[kMost];
};

// ---- the lender's thread, which enters the gate itself

// What a blob names, and a descriptor of it. False: freed since, or the driver would not.
bool lend(State& state, const Blob& blob, const Borrower& borrower, Lent* lent, int* descriptor);
void take_back_loan(State& state, const Blob& blob, const Borrower& borrower);
void forget_dead_borrowers(State& state);

}  // namespace device
}  // namespace gcr

#endif  // GCR_DEVICE_LOANS_H
