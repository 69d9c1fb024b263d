// SPDX-License-Identifier: Apache-2.0
//
// Phase kClosed: the gate is closed, and the daemon decides which of the calls that wait there pass. It sees the gates of
// all processes of a job; the agent of one process cannot tell which other one has still to make a call. Captures are
// held in this phase. A process that was quiesced comes back to it where processes on other nodes need its calls. By the
// agent's thread alone; no request here waits for the devices.
#ifndef GCR_CORE_CLOSED_H
#define GCR_CORE_CLOSED_H

#include "core/replies.h"

namespace gcr {

replies::Outcome on_close();
replies::Outcome on_look();
replies::Outcome on_admit();

}  // namespace gcr

#endif  // GCR_CORE_CLOSED_H
