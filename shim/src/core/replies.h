// SPDX-License-Identifier: Apache-2.0
//
// The request that the agent is serving, and its reply. On the agent's thread.
#ifndef GCR_CORE_REPLIES_H
#define GCR_CORE_REPLIES_H

#include <sys/uio.h>

#include "core/session.h"

namespace gcr {
namespace replies {

// What a handler did: answered, or the frame contradicts itself and the connection must close.
enum Outcome { kAnswered, kMalformed };

inline const Frame& request() {
    return *session.frame;
}

template <typename Record>
const Record& asked() {
    return *request().record<Record>();
}

inline bool send_reply(const iovec* parts, int count, const int* descriptors = nullptr, uint32_t descriptor_count = 0) {
    uint16_t type = static_cast<uint16_t>(wire::kReply | request().header.type);
    return session.channel.send(type, request().header.request, parts, count, descriptors, descriptor_count);
}

template <typename Record>
Outcome reply(const Record& record) {
    iovec part{const_cast<Record*>(&record), sizeof record};
    send_reply(&part, 1);
    return kAnswered;
}

inline Outcome reply_transaction() {
    return reply(wire::TransactionRecord{session.transaction.load()});
}

inline Outcome reply_count(const Tally& tally) {
    return reply(wire::CountRecord{session.transaction.load(), tally.handles, tally.bytes});
}

Outcome refuse(const Failure& cause, const Stuck* stuck = nullptr);  // says so where the driver has shut down
Outcome refuse(uint32_t code, const char* message);

}  // namespace replies
}  // namespace gcr

#endif  // GCR_CORE_REPLIES_H
