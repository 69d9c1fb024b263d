"""Says when a training is due to save, so that it loses at most a given share of its time. Measures while it runs.

Rank 0 measures: the seconds from step to step without and beside a save, the seconds that saves block, and those until
they are durable. Each step earns a share of its seconds, and a save is due once the cost of the last one is earned and
the disk is ready. So what was lost more than expected delays the next save, and the bound holds over the whole run.

The ranks agree only where a save may be due; rank 0 then says how many steps later that may be the next time. In
between `due` counts, and talks to no other rank.
"""

import logging
import time
from collections import deque
from collections.abc import Callable
from statistics import median
from threading import Condition

from msgspec import Struct

from gcr.checkpoints.tuning import in_flight, interval

log = logging.getLogger(__name__)

FIRST = 8  # steps before the first save
WARMING = 2  # steps at the start that are not measured
KEPT = 32  # measured steps of each kind
SAVES_KEPT = 8
MOST_FAILED = 12  # a run of failures doubles the wait so many times


class Turn(Struct, frozen=True):
    """The answer of rank 0. `again`: steps until the ranks ask again · `flying`: saves that may be under way."""

    due: bool
    again: int
    flying: int


class Places:
    """Places for saves under way, as many as `most`, which may change."""

    def __init__(self, most: int) -> None:
        self._most, self._taken, self._changed = most, 0, Condition()

    @property
    def most(self) -> int:
        return self._most

    @most.setter
    def most(self, most: int) -> None:
        with self._changed:
            self._most = most
            self._changed.notify_all()

    @property
    def is_full(self) -> bool:
        return self._taken >= self._most

    def acquire(self, blocking: bool = True) -> bool:
        """Takes a place, and waits for one unless told otherwise. Returns whether it has one."""
        with self._changed:
            if not blocking and self.is_full:
                return False
            self._changed.wait_for(lambda: not self.is_full)
            self._taken += 1
            return True

    def release(self) -> None:
        with self._changed:
            self._taken -= 1
            self._changed.notify_all()


class Steps:
    """Seconds of a training's steps, without and beside a save, and what saves have cost. For one thread."""

    def __init__(self) -> None:
        self._plain, self._beside = deque[float](maxlen=KEPT), deque[float](maxlen=KEPT)
        self._count, self._last, self._was_beside = 0, 0.0, False
        self._blocked, self._lost = 0.0, 0.0  # seconds since the last step; since the last `lost`
        self._beside_new = 0  # steps since the last `lost`

    def ended(self, now: float, is_beside: bool) -> None:
        """Notes the end of a step; `is_beside`: a save is under way. Costs microseconds."""
        self._count += 1
        if self._count > WARMING:
            took = now - self._last - self._blocked
            if is_beside or self._was_beside:
                self._beside.append(took)
                self._beside_new += 1
            else:
                self._plain.append(took)
        self._last, self._blocked, self._was_beside = now, 0.0, is_beside

    def blocked(self, seconds: float) -> None:
        """Notes a save, and that it blocked the training for so long."""
        self._blocked += seconds
        self._lost += seconds
        self._was_beside = True

    def lost(self) -> float:
        """Returns the seconds that saves have cost since the last call."""
        found = self._lost + self._beside_new * max(0.0, self._slowed_s())
        self._lost, self._beside_new = 0.0, 0
        return found

    def _slowed_s(self) -> float:
        return median(self._beside) - self.usual_s if self._beside and self._plain else 0.0

    @property
    def usual_s(self) -> float:
        """Returns the seconds of a step without a save; 0 before one was measured."""
        return median(self._plain) if self._plain else min(self._beside, default=0.0)


class Writes:
    """Seconds of saves. `began` is called by the training, `ended` by one thread of any kind.

    failed: saves in a row
    """

    def __init__(self) -> None:
        self._took, self._durable = deque[float](maxlen=SAVES_KEPT), deque[float](maxlen=SAVES_KEPT)
        self._begun, self._ended, self._ended_at = 0, 0, 0.0
        self.failed = 0

    @property
    def under_way(self) -> int:
        return self._begun - self._ended

    def began(self) -> None:
        self._begun += 1

    def ended(self, blocked_s: float, copied: float, now: float, is_durable: bool) -> None:
        """Notes the end of a save that was copied by then. Saves end in the order in which they began."""
        if is_durable:
            self._took.append(now - max(copied, self._ended_at))  # until then the thread had another
            self._durable.append(blocked_s + self._took[-1])
        self._ended_at, self.failed = now, 0 if is_durable else self.failed + 1
        self._ended += 1

    @property
    def usual_s(self) -> float:
        """Returns the seconds of writing a save, as a rule; 0 before one was measured."""
        return median([*self._took]) if self._took else 0.0

    @property
    def slow_s(self) -> float:
        """Returns the seconds until a save is durable that waits for no other one, at worst."""
        return max([*self._durable], default=0.0)


class Pacer:
    """Says whether a save is due; all ranks ask at the same steps, and have the same answer.

    slowdown: seconds that may be lost to saves, of each second of steps
    agreed: returns on every rank what the function returns on rank 0
    fitting: returns how many saves may be under way for want of host memory; None: as many as `places` has
    """

    def __init__(
        self,
        slowdown: float,
        places: Places,
        agreed: Callable[[Callable[[], Turn]], Turn],
        fitting: Callable[[], int] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._slowdown, self._places, self._agreed, self._fitting = slowdown, places, agreed, fitting
        self._clock, self._steps, self._writes = clock, Steps(), Writes()
        self._asked_for: tuple[int | None, bool] = None, False  # the last step, and the answer
        self._calls, self._next, self._saved_at = 0, FIRST, 0
        self._owed = 0.0  # seconds that are not earned yet

    # ---- told by the training -----------------------------------------------------------------------------------

    def due(self, step: int) -> bool:
        """Returns whether to save at this step. Called once a step; again for the same step it says the same."""
        if step != self._asked_for[0]:
            self._calls += 1
            self._steps.ended(self._clock(), self._writes.under_way > 0)
            self._asked_for = step, self._calls >= self._next and self._asked()
        return self._asked_for[1]

    def began(self, blocked_s: float) -> Callable[[bool], None]:
        """Notes a save that has blocked the training. The function is called at its end; True: it is durable."""
        self._writes.began()
        self._steps.blocked(blocked_s)
        copied = self._clock()
        return lambda is_durable: self._writes.ended(blocked_s, copied, self._clock(), is_durable)

    # ---- decided by rank 0 --------------------------------------------------------------------------------------

    def _asked(self) -> bool:
        turn = self._agreed(self._turn)
        self._next = self._calls + turn.again
        self._places.most = turn.flying
        return turn.due

    def _turn(self) -> Turn:
        self._owed += self._steps.lost()
        waited = self._calls - self._saved_at
        if self._writes.under_way and not self._writes.usual_s:  # the first save: nothing is known of the disk
            return Turn(False, waited, self._places.most)
        least, every = self._intervals()
        flying = self._flying(every)
        if waited < every and self._saved_at:
            return Turn(False, every - waited, flying)
        if self._writes.under_way >= flying:
            return Turn(False, 1 + waited // 8, flying)
        self._told(least, every)
        self._saved_at, self._owed = self._calls, 0.0
        return Turn(True, least, flying)

    def _intervals(self) -> tuple[int, int]:
        """Returns the steps that the disk wants between two saves, and those that also earn the cost of the last."""
        step_s = self._steps.usual_s or 1.0
        least = interval(step_s, 0.0, self._slowdown, self._writes.usual_s)
        if self._writes.failed:
            least = max(least, FIRST << min(self._writes.failed, MOST_FAILED))
        return least, max(least, interval(step_s, self._owed, self._slowdown, 0.0))

    def _flying(self, every: int) -> int:
        if not self._fitting:
            return self._places.most
        return in_flight(self._writes.slow_s, every * (self._steps.usual_s or 1.0), self._fitting())

    def _told(self, least: int, every: int) -> None:
        bound = "what saves cost" if every > least else "the disk"
        log.info(
            "a save is due after %d steps of %.3g s, by %s: the last save cost %.3g s, and to write one takes %.3g s",
            *(self._calls - self._saved_at, self._steps.usual_s, bound, self._owed, self._writes.usual_s),
        )
