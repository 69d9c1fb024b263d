// SPDX-License-Identifier: Apache-2.0
#include "hooks/libraries.h"

#include "abi/acl.h"
#include "abi/cuda.h"
#include "abi/hip.h"

namespace gcr {
namespace hooks {
namespace {

bool is_upper(char letter) {
    return letter >= 'A' && letter <= 'Z';
}

bool cuda_like(const char* name) {
    return name[0] == 'c' && name[1] == 'u' && is_upper(name[2]);
}

bool hip_like(const char* name) {
    return name[0] == 'h' && name[1] == 'i' && name[2] == 'p' && is_upper(name[3]);
}

// acl[a-z]*[A-Z]… and, of the runtime below, rt[A-Z]… and rts[A-Z]…
bool acl_like(const char* name) {
    if (name[0] == 'r' && name[1] == 't') return is_upper(name[name[2] == 's' ? 3 : 2]);
    if (name[0] != 'a' || name[1] != 'c' || name[2] != 'l') return false;
    for (name += 3; *name >= 'a' && *name <= 'z'; name++) {
    }
    return is_upper(*name);
}

}  // namespace

// No two libraries' symbols look alike.
const Library libraries[kLibraries] = {
    {{"libcuda.so"},
     "cuInit",
     cuda_like,
     kCudaFirst,
     kCudaEnd,
     false,
     cuda_abi::CUDA_ERROR_NOT_FOUND,
     cuda_abi::CUDA_ERROR_STUB_LIBRARY},
    {{"libamdhip64.so"},
     "hipInit",
     hip_like,
     kHipFirst,
     kHipEnd,
     true,
     hip_abi::hipErrorNotFound,
     hip_abi::hipErrorNotInitialized},
    {{"libascendcl.so", "libacl_rt.so", "libruntime.so"},
     "aclrtSetDevice",
     acl_like,
     kAclFirst,
     kAclEnd,
     false,
     acl_abi::ACL_ERROR_RT_FEATURE_NOT_SUPPORT,
     acl_abi::ACL_ERROR_UNINITIALIZE},
};

const Library& library_of(Index index) {
    for (const Library& library : libraries)
        if (index >= library.first && index < library.end) return library;
    return libraries[0];
}

const Library* library_like(const char* name) {
    for (const Library& library : libraries)
        if (library.like(name)) return &library;
    return nullptr;
}

}  // namespace hooks
}  // namespace gcr
