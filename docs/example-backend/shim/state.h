// SPDX-License-Identifier: Apache-2.0
//
// What the shim knows of acme in this process: gcr's own record of its memory, and which devices the program uses.
#ifndef ACME_SHIM_STATE_H
#define ACME_SHIM_STATE_H

#include "core/vendor.h"
#include "device/state.h"
#include "hooks/real.h"

namespace gcr {
namespace vendor {

struct State : device::State {
    constexpr explicit State(const device::DeviceOps& table) : device::State(table) {
        for (int device = 0; device < device::kMaxDevices; device++) owners[device].device = device;
    }
    device::Owner owners[device::kMaxDevices];  // a device's memory ends with its context
    std::atomic<uint32_t> used{0};              // device mask: those the program made current
};

extern State state;
const VendorOps& vendor_ops();

}  // namespace vendor
}  // namespace gcr

#endif  // ACME_SHIM_STATE_H
