"""Decides whether one more round of copying pays while the job runs. No clock and no socket.

A round sends what changed since the one before, of device memory and of host memory. The stop sends what changed since
the last round. So a round pays as long as the next one is likely to send less.
"""

from collections.abc import Sequence

from msgspec import Struct

MOST = 5
SHRINKS = 0.8  # a round pays if it sends less than this share of the one before
GOAL_S = 0.5  # seconds of sending within the stop that are good enough


class Round(Struct, frozen=True):
    """A round: the bytes that crossed the network, the seconds that the image took, and those of the network.

    host_bytes: of host memory that were read, sent or not
    """

    bytes_sent: int
    copy_s: float
    pull_s: float
    host_bytes: int = 0

    @property
    def bytes_per_s(self) -> float:
        """Returns the rate of the network; 0 where nothing was sent."""
        return self.bytes_sent / self.pull_s if self.pull_s > 0 else 0.0


def is_worth_another(done: Sequence[Round]) -> bool:
    """Returns whether the job is to be copied once more before it is stopped."""
    if not done:
        return True
    last, rate = done[-1].bytes_sent, max(each.bytes_per_s for each in done)
    if len(done) >= MOST or last <= rate * GOAL_S:
        return False
    return len(done) == 1 or paid(done, len(done) - 1)


def paid(done: Sequence[Round], number: int) -> bool:
    """Returns whether this round sent clearly less than the one before. The first one always pays."""
    return number == 0 or done[number].bytes_sent < SHRINKS * done[number - 1].bytes_sent
