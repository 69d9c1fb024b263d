// SPDX-License-Identifier: Apache-2.0
//
// Tickets: what a program is given where it exports physical memory as a descriptor. A driver's descriptor in a program's
// hands, or in a socket's queue, is a reference that no unmapping reaches: the memory would never leave the device. A
// ticket is a memory file, sealed against change, with the blob of the memory in it (core/lending.h). A program passes it
// on as it likes; whoever imports it under the shim is lent the memory by its owner.
#ifndef GCR_CORE_TICKET_H
#define GCR_CORE_TICKET_H

#include "core/lending.h"

namespace gcr {

// Without a daemon, or where GCR_SHARE=driver, a program is given the driver's own descriptors.
bool gives_tickets();
void give_tickets(bool wanted);

int make_ticket(const Blob& blob);  // a descriptor; the caller owns it. -1: the kernel makes no such file
bool read_ticket(int descriptor, Blob* blob);  // false: it is something else

}  // namespace gcr

#endif  // GCR_CORE_TICKET_H
