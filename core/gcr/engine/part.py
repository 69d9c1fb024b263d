"""A node's part in a cut over several nodes: it waits at barriers for the word of the cut's coordinator.

The coordinator says `go` once every node has come to the same barrier, or gives the cut up. A part that hears neither
in time gives up by itself. What was begun is then taken back, as after any failure.
"""

import time
from collections.abc import Callable
from threading import Condition

from msgspec import Struct, field

from gcr.api.barriers import Barrier
from gcr.cuterrors import CutGivenUp
from gcr.errors import GcrError

DURABLE_S = 300.0  # for the other nodes to have their images on disk
LOOK_S = 0.05  # between two looks at a caller that may have left
TELL_AGAIN_S = 1.0  # a report of progress may be lost
MOST_PAUSE_S = 8.0  # each pause is twice as long as the one before, up to this: very many parts may wait


class Part(Struct):
    """Thread-safe. `id`: of the cut. `still_s`: seconds that a program may stand still for the others.

    durable_s: seconds that an image on disk may wait for those of the others
    at: the barrier at which it waits · come, gone: barriers that it has come to, and that it may pass
    is_kept: the root of the image is in this node's store, so the cut counts unless the coordinator gives it up
    """

    id: str
    still_s: float
    durable_s: float = DURABLE_S
    at: Barrier | None = None
    come: set[Barrier] = field(default_factory=set)
    gone: set[Barrier] = field(default_factory=set)
    is_given_up: bool = False
    is_kept: bool = False
    _changed: Condition = field(default_factory=Condition)

    def go(self, barrier: Barrier) -> None:
        """Lets it pass a barrier, to which it need not have come yet."""
        with self._changed:
            self.gone.add(barrier)
            self._changed.notify_all()

    def give_up(self) -> None:
        """Has its transaction taken back, unless that is decided already."""
        with self._changed:
            self.is_given_up = True
            self._changed.notify_all()

    def keep(self) -> None:
        """Has the cut count also where no word comes any more. Raises CutGivenUp."""
        with self._changed:
            self.check()
            self.is_kept = True

    def check(self) -> None:
        """Raises CutGivenUp where the coordinator has given up."""
        if self.is_given_up:
            raise CutGivenUp("the coordinator of the cut gave up; everything was taken back", hint="gcr ps")

    def wait(self, barrier: Barrier, tell: Callable[[], object], left: Callable[[float], float]) -> None:
        """Tells that it has come to a barrier, and returns once it may pass.

        left: returns the seconds that are left, at most those that it gets; raises where the caller has left
        Raises CutGivenUp, and as `left`.
        """
        self._arrive(barrier)
        try:
            self._wait(barrier, tell, left)
        except GcrError:
            if not (barrier is Barrier.DURABLE and self.is_kept and not self.is_given_up):
                raise
        finally:
            self.at = None

    def _wait(self, barrier: Barrier, tell: Callable[[], object], left: Callable[[float], float]) -> None:
        began = told = time.monotonic()
        pause = TELL_AGAIN_S
        tell()
        while not self._may_pass(barrier, left(LOOK_S)):
            now = time.monotonic()
            self._refuse_late(barrier, now - began)
            if now - told >= pause:
                tell()
                told, pause = now, min(2 * pause, MOST_PAUSE_S)
        self.check()

    def _refuse_late(self, barrier: Barrier, waited: float) -> None:
        """Raises CutGivenUp after so many seconds at a barrier where no program runs."""
        limits = {Barrier.STILL: (self.still_s, "cut_s"), Barrier.DURABLE: (self.durable_s, "--timeout")}
        if barrier in limits and waited >= limits[barrier][0]:
            limit, setting = limits[barrier]
            text = f"the other nodes of the cut were not heard of within {limit:g} s"
            raise CutGivenUp(text, hint=f"a larger {setting}")

    def _arrive(self, barrier: Barrier) -> None:
        """Raises CutGivenUp for a second attempt where the other nodes may have counted on the first one."""
        with self._changed:
            if Barrier.STILL in self.come and barrier is not Barrier.DURABLE:
                text = "a process ended after the job stood still: it cannot come to the same cut once more"
                raise CutGivenUp(text, hint="the same once more")
            self.come.add(barrier)
            self.at = barrier

    def _may_pass(self, barrier: Barrier, patience: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self.is_given_up or barrier in self.gone, patience)
