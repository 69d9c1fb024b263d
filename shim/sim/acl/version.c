// SPDX-License-Identifier: Apache-2.0
//
// Compiled once per CANN release that is played; everything else is compiled once.
#include <stdio.h>
#include <string.h>

#include "front.h"

const struct front_version front_version = {
    .major = GCR_SIM_CANN_MAJOR,
    .minor = GCR_SIM_CANN_MINOR,
    .api_minor = GCR_SIM_CANN_MAJOR >= 9 ? 17 : 16,
};

bool front_is_at_least(int major, int minor) {
    return front_version.major > major || (front_version.major == major && front_version.minor >= minor);
}

SIM_API aclError aclrtGetVersion(int32_t* major, int32_t* minor, int32_t* patch) {
    if (!major || !minor || !patch) return ACL_ERROR_INVALID_PARAM;
    *major = 1;
    *minor = front_version.api_minor;
    *patch = 0;
    return ACL_SUCCESS;
}

SIM_API aclError aclsysGetCANNVersion(aclCANNPackageName name, aclCANNPackageVersion* version) {
    if (!version || name < ACL_PKG_NAME_CANN || name > ACL_PKG_NAME_DRIVER) return ACL_ERROR_INVALID_PARAM;
    memset(version, 0, sizeof *version);
    snprintf(version->version, sizeof version->version, "%d.%d.0.SIMULATED", front_version.major, front_version.minor);
    snprintf(version->majorVersion, sizeof version->majorVersion, "%d", front_version.major);
    snprintf(version->minorVersion, sizeof version->minorVersion, "%d", front_version.minor);
    snprintf(version->releaseVersion, sizeof version->releaseVersion, "0");
    return ACL_SUCCESS;
}

SIM_API const char* aclrtGetSocName(void) {
    return "Ascend910B-SIMULATED";
}
