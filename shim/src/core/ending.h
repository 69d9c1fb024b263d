// SPDX-License-Identifier: Apache-2.0
//
// The end of the program, as far as its drivers go: they shut down inside exit(), and refuse every call from then on.
//
// A driver registers its own exit handler when it starts; ours is registered after that, so exit() runs it before. It is
// a gated call. A suspended program waits in it until it is restored, and then ends as it would have. A program that has
// passed it is never suspended any more: the agent makes no driver call, and says so (kDriverGone, kFlagEnding).
//
// Ordering  exit() sets `ending`, then waits until no Driving is alive; a Driving counts itself in, then looks at `ending`.
//           One of the two sees the other: both are sequentially consistent.
#ifndef GCR_CORE_ENDING_H
#define GCR_CORE_ENDING_H

#include "core/vendor.h"

namespace gcr {

constexpr Failure kProgramEnds{wire::kDriverGone, 0, "the program is in exit(): its drivers shut down"};

void foresee_ending();  // once for each vendor, after its driver has started
bool program_is_ending();
void note_ending();  // a driver said that it has shut down
void reset_ending_after_fork();

// The agent's thread calls drivers while one of these is alive, if it is allowed to; exit() waits until it is over.
class Driving {
  public:
    Driving();
    ~Driving();
    Driving(const Driving&) = delete;
    Driving& operator=(const Driving&) = delete;
    bool allowed() const { return allowed_; }

  private:
    bool allowed_;
};

}  // namespace gcr

#endif  // GCR_CORE_ENDING_H
