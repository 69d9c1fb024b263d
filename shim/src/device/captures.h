// SPDX-License-Identifier: Apache-2.0
//
// Stream captures in progress, of one vendor: they delay a quiesce, and forbid some calls to some threads. Streams are
// the vendor's handles; an owner is whose end ends the capture (CUDA: a context; HIP: a device). No driver call.
//
// Lock   its own; none comes after it.
#ifndef GCR_DEVICE_CAPTURES_H
#define GCR_DEVICE_CAPTURES_H

#include <stdint.h>

#include <atomic>

#include "core/array.h"
#include "core/gate.h"
#include "core/lock.h"

namespace gcr {
namespace device {

// The same numbers for every vendor.
enum CaptureMode : uint32_t { kCaptureGlobal = 0, kCaptureThreadLocal = 1, kCaptureRelaxed = 2 };

struct CapturedStream {
    uint64_t handle;
    bool per_thread;  // handle 0 is its thread's own stream
    bool own;         // it is the calling thread's own, so the same handle is another stream elsewhere
};

class Captures {
  public:
    uint32_t count() const { return count_.load(std::memory_order_seq_cst); }  // no lock
    // CUDA driver API, cuThreadExchangeStreamCaptureMode: which captures forbid unsafe calls to a thread in which mode.
    bool forbid(uint32_t mode);
    void forget_of(uint64_t owner);
    void forget_on(uint64_t stream);
    void forget_all_after_fork();
    Lock& lock() { return lock_; }  // for fork alone

    // The count grows while the call is still in flight: an agent that finds no call in flight finds the capture. And
    // while `settling` is held: a thread that holds it and finds no capture meets none. It is never held at the gate.
    // owner: asked after a success.
    template <typename Owner, typename Begin>
    auto begin(Lock& settling, const CapturedStream& stream, uint32_t mode, Owner owner, Begin call) {
        wait_to_capture();
        Guard guard(settling);
        auto result = call();
        if (result == 0) add(stream, mode, owner());
        return result;
    }

    // A failed end may or may not have ended it: the driver knows. still: asked after a failure.
    template <typename Still, typename End>
    auto end(const CapturedStream& stream, Still still, End call) {
        auto result = call();
        if (result == 0 || !still()) remove(stream);
        return result;
    }

  private:
    struct Capture {
        CapturedStream stream;
        long thread;
        uint32_t mode;
        uint64_t owner;
    };
    template <typename Matches>
    void remove_if(Matches matches);
    void add(const CapturedStream& stream, uint32_t mode, uint64_t owner);
    void remove(const CapturedStream& stream);

    Lock lock_;
    Array<Capture> all_;
    std::atomic<uint32_t> count_{0};  // all_.size(), readable without the lock
};

}  // namespace device
}  // namespace gcr

#endif  // GCR_DEVICE_CAPTURES_H
