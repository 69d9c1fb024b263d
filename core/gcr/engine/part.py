"""A node's part in a cut over several nodes: it waits at barriers for the word of the cut's coordinator.

The coordinator says `go` once every node has come to the same barrier, or gives the cut up. A part that hears neither
in time gives up by itself. What was begun is then taken back, as after any failure.

Where a rank of any node needs calls of another node to come to rest, the coordinator leads the ranks of all nodes
meanwhile (gcr.cluster.standstill). A part obeys on the thread that waits at the barrier.
"""

import time
from collections.abc import Callable
from threading import Condition

from msgspec import Struct, field

from gcr.api.barriers import Barrier
from gcr.cuterrors import CutGivenUp, NoSuchCut
from gcr.errors import GcrError, UsageError
from gcr.standstill.messages import Lead, Report

DURABLE_S = 300.0  # for the other nodes to have their images on disk
LOOK_S = 0.05  # between two looks at a caller that may have left
TELL_AGAIN_S = 1.0  # a report of progress may be lost
MOST_PAUSE_S = 8.0  # each pause is twice as long as the one before, up to this: very many parts may wait
OBEYED_S = 10.0  # for one order: the agents answer in time, or their processes have ended
STANDING = (Barrier.APART, Barrier.STILL)  # the program stands there

Obey = Callable[[Lead], tuple[Report, ...]]


def no_ranks(_lead: Lead) -> tuple[Report, ...]:
    """Obeys for a job without a gate: nothing of it is on a device."""
    return ()


class Told(Struct):
    """An order under way, and its answer."""

    lead: Lead
    answer: tuple[Report, ...] | None = None
    error: GcrError | None = None

    @property
    def is_over(self) -> bool:
        return self.answer is not None or self.error is not None


class Part(Struct):
    """Thread-safe. `id`: of the cut. `still_s`: seconds that a program may stand still for the others.

    durable_s: seconds that an image on disk may wait for those of the others
    at: the barrier at which it waits · come, gone: barriers that it has come to, and that it may pass
    is_kept: the root of the image is in this node's store, so the cut counts unless the coordinator gives it up
    stopped_at: when the gates were closed
    """

    id: str
    still_s: float
    durable_s: float = DURABLE_S
    at: Barrier | None = None
    come: set[Barrier] = field(default_factory=set)
    gone: set[Barrier] = field(default_factory=set)
    is_given_up: bool = False
    is_kept: bool = False
    stopped_at: float | None = None
    _told: Told | None = None
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

    def led(self, lead: Lead) -> tuple[Report, ...]:
        """Has its ranks obey an order, and returns what they report. Raises NoSuchCut, and what the order raised."""
        told = Told(lead)
        with self._changed:
            if self.at not in STANDING or self._told is not None or self.is_given_up:
                raise NoSuchCut(f"the part of cut {self.id} cannot be led just now", hint="gcr ps --json")
            self._told = told
            self._changed.notify_all()
            self._changed.wait_for(lambda: told.is_over, OBEYED_S)
            if told.answer is None:
                raise told.error or NoSuchCut(f"the part of cut {self.id} did not obey in time")
            return told.answer

    def check(self) -> None:
        """Raises CutGivenUp where the coordinator has given up."""
        if self.is_given_up:
            raise CutGivenUp("the coordinator of the cut gave up; everything was taken back", hint="gcr ps")

    def wait(
        self,
        barrier: Barrier,
        tell: Callable[[Barrier], object],
        left: Callable[[float], float],
        obey: Obey = no_ranks,
    ) -> Barrier:
        """Tells that it has come to a barrier, and returns once it may pass: that barrier, or APART if it was led.

        left: returns the seconds that are left, at most those that it gets; raises where the caller has left
        Raises CutGivenUp, as `left`, and what an order raises.
        """
        self._arrive(barrier)
        try:
            return self._wait(barrier, tell, left, obey)
        except GcrError:
            if not (barrier is Barrier.DURABLE and self.is_kept and not self.is_given_up):
                raise
            return barrier
        finally:
            self._left()

    def _wait(
        self, barrier: Barrier, tell: Callable[[Barrier], object], left: Callable[[float], float], obey: Obey
    ) -> Barrier:
        began = told = time.monotonic()
        pause = TELL_AGAIN_S
        tell(barrier)
        while not self._may_pass(barrier, left(LOOK_S)):
            if self._told:
                barrier = self._leave_for_the_others(barrier)
                self._obey(self._told, obey)
            now = time.monotonic()
            stopped_at = self.stopped_at if barrier in STANDING else None
            self._refuse_late(barrier, now - (stopped_at or began))
            if now - told >= pause:
                tell(barrier)
                told, pause = now, min(2 * pause, MOST_PAUSE_S)
        self.check()
        return barrier

    def _refuse_late(self, barrier: Barrier, waited: float) -> None:
        """Raises CutGivenUp after so many seconds at a barrier where no program runs."""
        limits = dict.fromkeys(STANDING, (self.still_s, "cut_s")) | {Barrier.DURABLE: (self.durable_s, "--timeout")}
        if barrier in limits and waited >= limits[barrier][0]:
            limit, setting = limits[barrier]
            text = f"the other nodes of the cut were not heard of within {limit:g} s"
            raise CutGivenUp(text, hint=f"a larger {setting}")

    def _arrive(self, barrier: Barrier) -> None:
        """Raises CutGivenUp for a second attempt where the other nodes may have counted on the first one."""
        with self._changed:
            led = Barrier.APART in self.come and barrier is not Barrier.STILL
            if (Barrier.STILL in self.come or led) and barrier is not Barrier.DURABLE:
                text = "a process ended after the job stood still: it cannot come to the same cut once more"
                raise CutGivenUp(text, hint="the same once more")
            self.come.add(barrier)
            self.at = barrier

    def _leave_for_the_others(self, barrier: Barrier) -> Barrier:
        """Stands still no longer for certain: calls of its ranks may be admitted. So it comes to STILL once more."""
        with self._changed:
            if barrier is Barrier.STILL:
                self.come.discard(barrier)
                self.come.add(Barrier.APART)
                self.at = Barrier.APART
            return Barrier.APART

    def _obey(self, told: Told, obey: Obey) -> None:
        """Gives the cut up where an order fails: a rank may be where the coordinator does not know."""
        try:
            told.answer = obey(told.lead)
        except UsageError as error:  # nothing was done
            told.error = error
        except BaseException as error:
            told.error = NoSuchCut(f"the part of cut {self.id} gave up: {error}")
            self.give_up()
            raise
        finally:
            with self._changed:
                self._told = None
                self._changed.notify_all()

    def _left(self) -> None:
        with self._changed:
            self.at = None
            if self._told:
                self._told.error = NoSuchCut(f"the part of cut {self.id} waits no longer", hint="gcr ps --json")
                self._told = None
            self._changed.notify_all()

    def _may_pass(self, barrier: Barrier, patience: float) -> bool:
        """Waits for a word. Returns False for an order."""

        def passes() -> bool:
            return self.is_given_up or barrier in self.gone

        with self._changed:
            self._changed.wait_for(lambda: passes() or self._told is not None, patience)
            return passes() and (self.is_given_up or self._told is None)
