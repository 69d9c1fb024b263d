// SPDX-License-Identifier: Apache-2.0
#ifndef GCR_DEVICE_STATUS_H
#define GCR_DEVICE_STATUS_H

#include "device/state.h"

namespace gcr {
namespace device {

// Adds what there is to `status`, and one record a device to `devices`. No driver call.
void add_status(State& state, wire::StatusRecord* status, Array<wire::DeviceRecord>* devices);

}  // namespace device
}  // namespace gcr

#endif  // GCR_DEVICE_STATUS_H
