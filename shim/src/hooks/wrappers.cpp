// SPDX-License-Identifier: Apache-2.0
//
// The table of wrappers. Their parameters do not matter here, and their types are known where they are defined.
#include "hooks/slots.h"

extern "C" {
#define GCR_HOOK(symbol, ...) void gcr_wrap_##symbol();
#include "hooks/cuda.def"
#define GCR_HOOK(symbol, ...) void gcr_wrap_##symbol();
#include "hooks/hip.def"
#define GCR_HOOK(symbol, ...) void gcr_wrap_##symbol();
#include "hooks/acl.def"
}

namespace gcr {
namespace hooks {

void* const wrappers[kSymbolCount] = {
#define GCR_HOOK(symbol, ...) reinterpret_cast<void*>(gcr_wrap_##symbol),
#define GCR_ALONE(symbol, ...) nullptr,
#include "hooks/cuda.def"
#define GCR_HOOK(symbol, ...) reinterpret_cast<void*>(gcr_wrap_##symbol),
#define GCR_ALONE(symbol, ...) nullptr,
#include "hooks/hip.def"
#define GCR_HOOK(symbol, ...) reinterpret_cast<void*>(gcr_wrap_##symbol),
#define GCR_ALONE(symbol, ...) nullptr,
#include "hooks/acl.def"
};

}  // namespace hooks
}  // namespace gcr
