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

LOOK_S = 0.05  # between two looks at a caller that may have left
TELL_AGAIN_S = 1.0  # a report of progress may be lost
MOST_PAUSE_S = 8.0  # each pause is twice as long as the one before, up to this: very many parts may wait


class Part(Struct):
    """Thread-safe. `id`: of the cut. `still_s`: seconds that a program may stand still for the others.

    at: the barrier at which it waits · come, gone: barriers that it has come to, and that it may pass
    """

    id: str
    still_s: float
    at: Barrier | None = None
    come: set[Barrier] = field(default_factory=set)
    gone: set[Barrier] = field(default_factory=set)
    is_given_up: bool = False
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

    def check(self) -> None:
        """Raises CutGivenUp where the coordinator has given up."""
        if self.is_given_up:
            raise CutGivenUp("the coordinator of the cut gave up; everything was taken back", hint="gcr ps")

    def wait(self, barrier: Barrier, tell: Callable[[], object], left: Callable[[float], float]) -> None:
        """Tells that it has come to a barrier, and returns once it may pass.

        left: returns the seconds that are left, at most those that it gets; raises where the caller has left
        Raises CutGivenUp.
        """
        self._arrive(barrier)
        try:
            began = told = time.monotonic()
            pause = TELL_AGAIN_S
            tell()
            while not self._may_pass(barrier, left(LOOK_S)):
                now = time.monotonic()
                if barrier is Barrier.STILL and now - began >= self.still_s:
                    text = f"the other nodes of the cut were not heard of within {self.still_s:g} s"
                    raise CutGivenUp(text, hint="a larger cut_s")
                if now - told >= pause:
                    tell()
                    told, pause = now, min(2 * pause, MOST_PAUSE_S)
            self.check()
        finally:
            self.at = None

    def _arrive(self, barrier: Barrier) -> None:
        """Raises CutGivenUp for a second attempt where the other nodes may have counted on the first one."""
        with self._changed:
            if Barrier.STILL in self.come:
                text = "a process ended after the job stood still: it cannot come to the same cut once more"
                raise CutGivenUp(text, hint="the same once more")
            self.come.add(barrier)
            self.at = barrier

    def _may_pass(self, barrier: Barrier, patience: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self.is_given_up or barrier in self.gone, patience)
