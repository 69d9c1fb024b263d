// SPDX-License-Identifier: Apache-2.0
//
// Channel: whole frames in and out of one SOCK_SEQPACKET socket, descriptors included. Reading: the agent's thread
// alone. Writing: any thread; frames do not mix. Every wait has a deadline. No frame outlives the next read.
#ifndef GCR_CORE_CHANNEL_H
#define GCR_CORE_CHANNEL_H

#include <stdint.h>

#include "core/lock.h"
#include "gcr/wire.h"

struct iovec;
struct msghdr;

namespace gcr {

struct Frame {
    wire::FrameHeader header;
    uint32_t descriptors = 0;
    int descriptor[wire::kMaxDescriptors];
    bool descriptors_lost = false;  // the process had no number left for some of them
    alignas(8) uint8_t payload[wire::kMaxFrame];

    void close_descriptors();
    bool is_reply() const { return (header.type & wire::kReply) != 0; }  // kError included

    // The fixed record at the front; null when the payload is too short for it.
    template <typename Record>
    const Record* record() const {
        return header.length < sizeof(Record) ? nullptr : reinterpret_cast<const Record*>(payload);
    }
};

enum class Receive { kFrame, kNothing, kLost };  // kLost: closed by the peer, by the program, or malformed

class Channel {
  public:
    // Does not wait for a peer whose queue is full. False, before any byte, where the peer is neither of this user nor of
    // root nor of `trusted_user` (-1: none).
    bool connect(const char* path, long trusted_user);
    void close();
    bool open() const { return socket_.open(); }
    Receive receive(Frame* frame, uint32_t timeout_us);
    bool send(uint16_t type, uint64_t request, const iovec* parts, int part_count, const int* descriptors = nullptr,
              uint32_t descriptor_count = 0);
    // The same, giving up on a peer that does not read after so long; 0: at once.
    bool send_within(uint32_t deadline_ms, uint16_t type, uint64_t request, const iovec* parts, int part_count,
                     const int* descriptors = nullptr, uint32_t descriptor_count = 0);
    Lock& write_lock() { return write_lock_; }
    void close_in_child();

  private:
    bool send_packet(const msghdr* message, uint32_t deadline_ms);

    OwnedFd socket_;
    Lock write_lock_;
};

}  // namespace gcr

#endif  // GCR_CORE_CHANNEL_H
