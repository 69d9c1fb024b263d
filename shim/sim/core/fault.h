// SPDX-License-Identifier: Apache-2.0
//
// Faults on purpose. Rules come from GCR_SIM_FAULTS and from <state>/faults, which is read again when it changes:
//
//     function[@pid]:n:action       separated by newlines, blanks, commas or semicolons; `#` to the end of the line
//
// `function` is a driver function with or without its version suffix, or a step of the checkpoint service in the
// target (checkpoint.lock, checkpoint.checkpoint, checkpoint.copied, checkpoint.restore, checkpoint.recreated,
// checkpoint.unlock). Failed at checkpoint.copied or checkpoint.recreated, the driver never gives the process back.
// `n` counts that process's calls since it first saw the rule; `n+` also hits every later call; `*` every call.
// `action` is fail=<the vendor's number>, delay=<ms>, die (SIGKILL to itself), or hang.
#ifndef GCR_SIM_FAULT_H
#define GCR_SIM_FAULT_H

#include "base.h"

sim_result sim_fault(const char* function);  // without sim_lock; SIM_OK, or SIM_VENDOR_BASE + number

#endif
