// SPDX-License-Identifier: Apache-2.0
//
// Ids: the virtual handles that programs and the daemon see.
//
//   63       48 47    40 39                        0
//   | 'g'  'c' | vendor | counts from 1, never reused |      no driver handle and no canonical address looks so
//
// So ids of several vendors sort by vendor, then by age, and an id alone tells whose it is.
#ifndef GCR_DEVICE_IDS_H
#define GCR_DEVICE_IDS_H

#include <stdint.h>

namespace gcr {
namespace device {

constexpr uint64_t kIdPrefix = 0x6763ull << 48;
constexpr int kIdVendorShift = 40;

constexpr uint64_t first_id(uint32_t vendor) {
    return kIdPrefix | static_cast<uint64_t>(vendor) << kIdVendorShift | 1;
}
constexpr bool is_id(uint64_t value) {
    return value >> 48 == kIdPrefix >> 48;
}
constexpr uint32_t vendor_of(uint64_t id) {  // 0, which is no vendor: not an id
    return is_id(id) ? id >> kIdVendorShift & 0xff : 0;
}

// What the driver is given for an id that is not (or no longer) alive: r580 takes a handle for an address and faults on
// one of ours; bare, the answer to a stale handle is INVALID_VALUE, and so it is to 0.
constexpr uint64_t as_passed_on(uint64_t id) {
    return is_id(id) ? 0 : id;
}

}  // namespace device
}  // namespace gcr

#endif  // GCR_DEVICE_IDS_H
