// SPDX-License-Identifier: Apache-2.0
//
// What gcr's interposer must know of the driver: its types, its file, how its names look, how it says no.
#ifndef ACME_SHIM_VENDOR_H
#define ACME_SHIM_VENDOR_H

#include "simulator/acme.h"

namespace gcr {
namespace vendor {

using Result = acmeResult;
constexpr char kFile[] = "libacme.so";  // what the name of its file begins with
constexpr char kPrefix[] = "acme";
constexpr char kAny[] = "acmeInit";  // a call that every version has
constexpr Result kLacks = ACME_LACKING;
constexpr Result kAbsent = ACME_ABSENT;

}  // namespace vendor
}  // namespace gcr

#endif  // ACME_SHIM_VENDOR_H
