// SPDX-License-Identifier: Apache-2.0
//
// Leaving: the agent of a suspended process closes and unmaps all that is its own, so that CRIU can save the process.
//
// Mark     a file beside the daemon's socket, named after it, the job's token and the pid of the hello. The daemon makes it
//          before it asks the agent to leave. The agent stays away while the file is there, and then connects as after a
//          daemon's death, with kFlagReturned.
// Restored a process that CRIU brought back finds no mark: the daemon has removed it by then.
// Threads  the agent's own alone. It makes no driver call, and allocates nothing.
// Clocks   none is read while the agent is away: the machine that the process is restored on may have started later.
#ifndef GCR_CORE_LEAVING_H
#define GCR_CORE_LEAVING_H

#include "core/vendor.h"

namespace gcr {

// Once, in each process, before the rest. `token`: a whole field of a hello, or text that ends before.
void name_mark(const char* socket_path, const char* token);
// From here on session.leaving, or a failure with nothing done: no mark, memory on its way back, or a program in exit().
Failure begin_to_leave();
void close_own();  // but for the connection: its end tells the daemon that nothing else is left
void stay_away();  // returns once there is no mark

}  // namespace gcr

#endif  // GCR_CORE_LEAVING_H
