// SPDX-License-Identifier: Apache-2.0
#include "core/replies.h"

#include <stdio.h>

#include "core/ending.h"

namespace gcr {
namespace replies {
namespace {

// What a driver answers that has shut down is told apart from its other refusals.
Failure told_apart(const Failure& failure) {
    if (failure.code != wire::kDriver || !session.vendors.gone(failure.vendor_error)) return failure;
    note_ending();
    return {wire::kDriverGone, failure.vendor_error, "its driver has shut down"};
}

}  // namespace

Outcome refuse(const Failure& cause, const Stuck* stuck) {
    Failure failure = told_apart(cause);
    wire::ErrorRecord record{};
    record.code = failure.code;
    record.vendor_error = failure.vendor_error;
    record.details = stuck == nullptr ? 0 : stuck->count;
    const char* call = failure.call == nullptr ? "" : failure.call;
    snprintf(record.message, sizeof record.message, "%s%s%s", call, *call == '\0' ? "" : " ", failure.message);
    iovec parts[] = {{&record, sizeof record}, {nullptr, 0}};
    if (stuck != nullptr)
        parts[1] = {const_cast<wire::StuckRecord*>(stuck->records), stuck->count * sizeof stuck->records[0]};
    session.channel.send(wire::kError, request().header.request, parts, 2);
    return kAnswered;
}

Outcome refuse(uint32_t code, const char* message) {
    return refuse(Failure{code, 0, message});
}

}  // namespace replies
}  // namespace gcr
