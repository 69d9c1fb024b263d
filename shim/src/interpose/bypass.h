// SPDX-License-Identifier: Apache-2.0
#ifndef GCR_INTERPOSE_BYPASS_H
#define GCR_INTERPOSE_BYPASS_H

#include <stddef.h>

namespace gcr {
namespace interpose {

// The name of an object whose links to a driver go past us, as RTLD_DEEPBIND makes them: its calls are never seen. Only
// links that were followed already can be told. Any thread; false: there is none.
bool find_bypass(char* file, size_t size);

}  // namespace interpose
}  // namespace gcr

#endif  // GCR_INTERPOSE_BYPASS_H
