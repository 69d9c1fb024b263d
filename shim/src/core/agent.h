// SPDX-License-Identifier: Apache-2.0
//
// The agent: the shim's own thread in the target. It keeps one connection to the daemon, does what the daemon asks,
// each request only in the phases where it is legal, and is the truth about this process: a new daemon starts from it.
//
// Lock order  batch lock, then the vendor's locks, then the channel's write lock. No driver call under the last two.
// Threads     the agent's thread writes phase, transaction, generation; any thread may read phase().
#ifndef GCR_CORE_AGENT_H
#define GCR_CORE_AGENT_H

#include <stdint.h>

#include "core/lock.h"
#include "core/vendor.h"

namespace gcr {

// After the first call of a vendor that succeeded, by its thread, in flight. Without GCR_SOCKET: nothing happens, ever.
// Again and again: once. A second vendor joins the agent that is there. Returns once the daemon has welcomed the process,
// or is not there, or a deadline passed; where the job is off its devices, once the process may begin.
void start_agent(const VendorOps* vendor);

bool agent_is_alive();  // false: no daemon leads this process, or not yet

// A handle that was exported is about to be released. Before this returns every holder has released it, or no holder is
// left, or a deadline passed. By the thread that frees, in flight, holding no lock.
void tell_released(uint64_t id);

// Out of memory on a device: what gcr has there for a moment is given back before this returns, or a deadline passed. By
// the thread that allocates, in flight, holding no lock. False, at once: gcr has nothing there.
bool ask_to_let_go(const uint8_t uuid[16]);

// A descriptor of a handle that the process was given back and cannot export again. By a thread of ours, in nothing the
// agent waits for. -1: the daemon has none, or is not there.
int ask_for_descriptor(uint64_t id);

}  // namespace gcr

#endif  // GCR_CORE_AGENT_H
