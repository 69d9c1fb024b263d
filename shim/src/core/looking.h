// SPDX-License-Identifier: Apache-2.0
//
// Requests that only look: the process's status, and its mappings.
#ifndef GCR_CORE_LOOKING_H
#define GCR_CORE_LOOKING_H

#include "core/replies.h"

namespace gcr {

replies::Outcome on_status();
replies::Outcome on_mappings();
replies::Outcome on_shared();

}  // namespace gcr

#endif  // GCR_CORE_LOOKING_H
