"""A node: its daemon and its part of the job, as the coordinator meets them."""

from collections.abc import Callable
from enum import StrEnum
from functools import partial
from random import Random

from cluster_simulation.assumptions import Assumptions, Spread
from cluster_simulation.clock import Action, Clock
from gcr.api.barriers import Barrier
from gcr.cluster.messages import (
    Ask,
    Begin,
    Came,
    Done,
    Event,
    Failed,
    GiveUp,
    Go,
    Left,
    Lost,
    Place,
    Restore,
    Stands,
)

CUT = "c" * 32
Tell = Callable[[Event], None]
NodeOrder = Begin | Go | GiveUp | Restore | Ask


class State(StrEnum):
    RUNNING = "running"  # also while a checkpoint of it is under way
    SUSPENDED = "suspended"
    DEAD = "dead"  # the whole machine


class Node:
    """tell: to the coordinator · noticed: the coordinator's side sees the connection end, or gets no answer

    stood_s: seconds that the program stood still and was not suspended yet
    """

    def __init__(
        self, name: str, clock: Clock, chance: Random, assumed: Assumptions, tell: Tell, noticed: Tell
    ) -> None:
        self.name, self.state, self.stood_s = name, State.RUNNING, 0.0
        self._clock, self._chance, self._assumed = clock, chance, assumed
        self._tell, self._noticed = tell, noticed
        self._slow = assumed.faults.slowness(chance)
        self._step = 0  # what was begun before the number last changed is void
        self._busy = False
        self._at: Barrier | None = None
        self._stopped_at: float | None = None
        self._asked = False
        self._away = False  # the daemon has no successor yet

    def hear(self, order: NodeOrder) -> None:
        if self.state is State.DEAD or (self._away and not isinstance(order, Ask)):
            self._unheard(order)
            return
        match order:
            case Begin():
                self._begin()
            case Go():
                self._go(order.barrier)
            case GiveUp():
                self._give_up()
            case Restore():
                self._restore()
            case Ask():
                self._asked = True
                self._answer()

    # ---- a checkpoint ---------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._busy = True
        self._later(self._assumed.part.admitted, partial(self._come, Barrier.ADMITTED))

    def _come(self, barrier: Barrier) -> None:
        limits = self._assumed.limits
        self._at = barrier
        self._wait(limits.cut if barrier is Barrier.STILL else limits.timeout, limits.told_again, self._step)
        self._answer()

    def _wait(self, left: float, pause: float, step: int) -> None:
        """Tells where it waits, again and again, and gives up by itself in the end."""
        if self._step != step or self._at is None:
            return
        if left <= 0:
            self._fail(Left.TAKEN_BACK)
            return
        self._tell(Came(self.name, self._at))
        pause = min(pause, left)
        grown = min(pause * self._assumed.told_again_grows, self._assumed.limits.most_pause)
        self._clock.after(pause, lambda: self._wait(left - pause, grown, step))

    def _go(self, barrier: Barrier) -> None:
        if self._at is not barrier:
            return
        self._at = None
        self._step += 1
        if barrier is Barrier.STILL:
            self._later(self._assumed.part.suspended, self._suspended)
            return
        self._stopped_at = self._clock.now
        takes = self._takes(self._assumed.part.still)
        if takes <= self._assumed.limits.quiesce:
            self._after(takes, partial(self._come, Barrier.STILL))
        else:  # it is stuck
            self._after(self._assumed.limits.quiesce, partial(self._fail, Left.UNKNOWN))

    def _suspended(self) -> None:
        self._rest(State.SUSPENDED)
        self._tell(Done(self.name))

    def _give_up(self) -> None:
        if self._busy and self.state is State.RUNNING:
            self._fail(Left.TAKEN_BACK)

    def _fail(self, left: Left) -> None:
        self._at = None
        self._step += 1
        self._later(self._assumed.part.taken_back, partial(self._taken_back, left))

    def _taken_back(self, left: Left) -> None:
        self._rest(State.RUNNING)
        self._tell(Failed(self.name, left))

    def _restore(self) -> None:
        self._busy = True
        self._later(self._assumed.part.restored, self._restored)

    def _restored(self) -> None:
        self._rest(State.RUNNING)
        self._tell(Done(self.name))

    def _rest(self, state: State) -> None:
        self.state, self._busy, self._at = state, False, None
        if self._stopped_at is not None:
            self.stood_s, self._stopped_at = self._clock.now - self._stopped_at, None
        self._answer()

    # ---- questions, and deaths ------------------------------------------------------------------------------------

    def _answer(self) -> None:
        """Answers a question once it is at rest, or held at a barrier."""
        if not self._asked or (self._busy and self._at is None):
            return
        self._asked = False
        if self._at is not None:
            self._tell(Stands(self.name, Place.HELD, CUT))
        elif self.state is State.SUSPENDED:
            self._tell(Stands(self.name, Place.SUSPENDED, CUT))
        else:
            self._tell(Stands(self.name, Place.RUNNING))

    def lose_daemon(self) -> None:
        """The daemon dies, and its connections end. Its successor takes back what was not decided."""
        if self._busy and not self._away:
            self._noticed(Lost(self.name))
        self._step += 1
        self._busy, self._at, self._away = True, None, True
        self._after(self._assumed.part.successor, self._be_succeeded)

    def _be_succeeded(self) -> None:
        self._away = False
        self._rest(self.state)

    def die(self) -> None:
        """The machine dies without a word."""
        self.state, self._busy, self._at = State.DEAD, False, None
        self._step += 1
        if self._asked:
            self._unheard(Ask(self.name))

    def _unheard(self, order: NodeOrder) -> None:
        """A request to a daemon that is not there ends without an answer, and the coordinator's thread says so."""
        if isinstance(order, Ask | Begin | Restore):
            self._clock.after(self._assumed.limits.answers, lambda: self._noticed(Lost(self.name)))

    # ---- time -----------------------------------------------------------------------------------------------------

    def _takes(self, spread: Spread) -> float:
        return self._slow * spread.draw(self._chance)

    def _later(self, spread: Spread, action: Action) -> None:
        self._after(self._takes(spread), action)

    def _after(self, seconds: float, action: Action) -> None:
        step = self._step
        self._clock.after(seconds, lambda: action() if self._step == step else None)
